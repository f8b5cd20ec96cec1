"""What a client is told of a prompt that slower tiers hold: whether it is fetched, and what either way takes."""

from __future__ import annotations

import pytest
from radixloop.v1 import cache_pb2, common_pb2

from runtime.models.loaded_model import LoadedModel
from runtime.publishing.description import describe
from runtime.tiers.pace import PrefillCost
from tests.runtime.services_harness import BLOCKS, Server, generate, prompt_of, serving
from tests.timing import eventually

LENGTH = 2400


def evicted_prompt(server: Server) -> common_pb2.Prompt:
    """One that was cached and had to leave the pool."""
    first = prompt_of(LENGTH, 0)
    generate(server, first, 1)
    for seed in range(1, 2 + BLOCKS * 16 // LENGTH):
        generate(server, prompt_of(LENGTH, seed), 1)
    tiers = server.runtime._engine.tiers
    assert tiers is not None
    assert eventually(lambda: not tiers.unfinished)
    return first


def promotion(server: Server, prompt: common_pb2.Prompt) -> common_pb2.Promotion:
    return server.cache.Explain(cache_pb2.ExplainRequest(prompt=prompt)).verdict.promotion


def test_what_is_fetched_is_explained_before_and_told_after(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny, host_cache=2**24) as server:
        prompt = evicted_prompt(server)
        monkeypatch.setattr(PrefillCost, "seconds_a_token", 0.5)
        before = promotion(server, prompt)
        assert before.fetched
        assert before.host_tokens > 0
        assert before.disk_tokens == 0
        assert before.compute_s == 0.5 * before.host_tokens
        started = generate(server, prompt, 1).started
        assert started.usage.cached_by_tier.host == before.host_tokens
        assert started.verdict.promotion.fetched
        assert started.verdict.promotion.compute_s == before.compute_s
        first = started.verdict.spans[0]
        assert (first.end, first.cause) == (LENGTH - 1, common_pb2.CAUSE_CACHED)
        found = {"host": before.host_tokens, "disk": 0}
        for tier, tokens in found.items():
            labels = {"tier": tier}
            registry = server.runtime._metrics.registry
            assert registry.get_sample_value("radixloop_prefix_cache_tier_hits_tokens_total", labels) == tokens
        description = describe(server.runtime._shared, server.target)
        assert description["runtime"]["kv_dtype"] == "fp32"
        told = description["counters"]
        assert (told["host_hit_tokens"], told["disk_hit_tokens"]) == (before.host_tokens, 0)
        assert 0 < told["host_used_blocks"] <= told["host_blocks"]
        # In the pool, it is nothing to be promoted.
        answer = server.cache.Explain(cache_pb2.ExplainRequest(prompt=prompt))
        assert answer.cached_tokens == LENGTH - 1
        assert not answer.verdict.HasField("promotion")


def test_what_is_cheaper_to_compute_is_told_and_computed(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny, host_cache=2**24) as server:
        prompt = evicted_prompt(server)
        monkeypatch.setattr(PrefillCost, "seconds_a_token", 1e-9)
        told = promotion(server, prompt)
        assert not told.fetched
        assert told.host_tokens > 0
        assert not told.HasField("fetch_s")
        started = generate(server, prompt, 1).started
        assert started.usage.cached_by_tier.host == 0
        assert not started.verdict.promotion.fetched
        assert started.verdict.promotion.host_tokens == told.host_tokens
        assert common_pb2.CAUSE_EVICTED in [span.cause for span in started.verdict.spans]
