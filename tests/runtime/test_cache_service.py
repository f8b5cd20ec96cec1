"""Warm, ListNodes and the books over a real engine with a tiny random Llama."""

from __future__ import annotations

from typing import Any

import grpc
from radixloop.v1 import (
    cache_pb2,
    common_pb2,
)

from runtime.models.loaded_model import LoadedModel
from tests.runtime.services_harness import (
    BLOCKS,
    Server,
    generate,
    open_session,
    prompt_of,
    refused,
    serving,
)


def nodes(server: Server, **more: Any) -> list[cache_pb2.Node]:
    return list(server.cache.ListNodes(cache_pb2.ListNodesRequest(**more)))


def test_warm_computes_a_prompt_and_generates_nothing(server: Server) -> None:
    prompt = prompt_of(90, seed=40)
    warmed = server.cache.Warm(cache_pb2.WarmRequest(prompt=prompt)).usage
    assert (warmed.prompt_tokens, warmed.cached_tokens, warmed.computed_tokens, warmed.output_tokens) == (90, 0, 90, 0)
    again = server.cache.Warm(cache_pb2.WarmRequest(prompt=prompt)).usage
    assert (again.cached_tokens, again.computed_tokens) == (89, 1)
    assert generate(server, prompt).started.usage.cached_tokens == 89


def test_nodes_are_listed_parents_first_with_their_text(tiny: LoadedModel) -> None:
    with serving(tiny) as fresh:
        for text in ("shared head, left", "shared head, right"):
            fresh.cache.Warm(cache_pb2.WarmRequest(prompt=common_pb2.Prompt(text=text)))
        fresh.cache.Warm(
            cache_pb2.WarmRequest(prompt=common_pb2.Prompt(text="other"), namespace=common_pb2.Namespace(salt="t"))
        )
        found = nodes(fresh, head_tokens=32)
        assert sorted(node.head for node in found) == ["left", "other", "right", "shared head, "]
        seen = {0}
        for node in found:
            assert node.parent_id in seen
            seen.add(node.id)
        trunk = next(node for node in found if node.head == "shared head, ")
        assert (trunk.start, trunk.tokens, trunk.children) == (0, 13, 2)
        assert {node.start for node in found if node.parent_id == trunk.id} == {13}
        assert [node.head for node in nodes(fresh, namespace=common_pb2.Namespace(salt="t"))] == ["other"]
        assert nodes(fresh, namespace=common_pb2.Namespace(salt="t"))[0].namespace.salt == "t"
        assert {node.head for node in nodes(fresh, head_tokens=0)} == {""}
        assert refused(lambda: nodes(fresh, head_tokens=257)).code() is grpc.StatusCode.INVALID_ARGUMENT

        stats = fresh.stats()
        assert (stats.nodes, stats.namespaces) == (4, 2)
        assert stats.total_blocks == stats.free_blocks + stats.active_blocks + stats.cached_blocks == BLOCKS
        flushed = fresh.cache.Flush(cache_pb2.FlushRequest(namespace=common_pb2.Namespace(salt="t")))
        assert (flushed.flushed_tokens, flushed.freed_blocks) == (5, 1)
        assert len(nodes(fresh)) == 3
        fresh.cache.Flush(cache_pb2.FlushRequest())
        assert nodes(fresh) == []
        assert fresh.stats().free_blocks == BLOCKS


def test_stats_add_up(tiny: LoadedModel) -> None:
    with serving(tiny) as fresh:
        prompt = prompt_of(100, seed=41)
        generate(fresh, prompt, 10)
        generate(fresh, prompt, 10)
        open_session(fresh)
        stats = fresh.idle()
        assert (stats.requests_total, stats.prompt_tokens_total, stats.output_tokens_total) == (2, 200, 20)
        assert (stats.hit_tokens_total, stats.computed_tokens_total) == (99, 101)
        assert (stats.sessions, stats.block_size, stats.cached_tokens) == (1, 16, 109)
        assert stats.uptime_s > 0
