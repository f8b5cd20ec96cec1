"""Prometheus metrics of a real engine: the same numbers as the replies had, and an answer whatever the engine does."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.drafting.drafts import DraftSettings, DraftSource
from runtime.events import RequestRecord, Timing, Usage
from runtime.models.loaded_model import LoadedModel
from runtime.monitoring.histograms import Histogram
from runtime.monitoring.metrics import MetricsServer, RuntimeMetrics, check_port
from runtime.monitoring.request_histograms import RequestHistograms
from runtime.monitoring.step_clock import PARTS
from runtime.publishing.publisher import PublisherStatus
from runtime.retention.keeping import KeepingBooks
from runtime.settings import BadConfig
from tests.runtime.engine_harness import Harness, prompt, running

STATUS = PublisherStatus(up=True, lag_s=0.25, outages=2, rewrites=3, dropped_events=4, error="")


def scrape(server: MetricsServer) -> dict[str, float]:
    """Every sample, its name with its labels -> its value."""
    with urllib.request.urlopen(server.url, timeout=30) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


@pytest.fixture
def harness(tiny: LoadedModel) -> Iterator[Harness]:
    with running(tiny, num_blocks=64, block_size=16) as started:
        yield started


@pytest.fixture
def server(harness: Harness) -> Iterator[MetricsServer]:
    metrics = RuntimeMetrics(harness.engine, harness.loaded.info, sessions=lambda: 5, publisher=lambda: STATUS)
    serving = metrics.serve("127.0.0.1", 0)
    yield serving
    serving.close()


def test_draft_tokens_are_told_apart_by_outcome(tiny: LoadedModel) -> None:
    with running(tiny, drafts=DraftSettings(frozenset(DraftSource), adaptive=False)) as harness:
        for _ in range(2):
            harness.run(prompt(40), max_tokens=30)
        books = harness.engine.counters
        assert 0 < books.accepted_draft_tokens <= books.draft_tokens
        metrics = RuntimeMetrics(harness.engine, tiny.info, sessions=lambda: 0)
        serving = metrics.serve("127.0.0.1", 0)
        found = scrape(serving)
        serving.close()
    accepted, rejected = (found[f'radixloop_draft_tokens_total{{outcome="{o}"}}'] for o in ("accepted", "rejected"))
    assert (accepted, accepted + rejected) == (books.accepted_draft_tokens, books.draft_tokens)


def test_the_books_agree_with_the_replies(harness: Harness, server: MetricsServer) -> None:
    replies = [harness.run(prompt(n), max_tokens=4) for n in (40, 40, 70)]
    replies.append(harness.run(prompt(50, 9), max_tokens=4, bypass_cache=True))
    usages = [reply.finished.usage for reply in replies]
    found = scrape(server)

    assert found["radixloop_prompt_tokens_total"] == sum(usage.prompt_tokens for usage in usages) == 200
    assert found["radixloop_prefix_cache_queries_tokens_total"] == 150, "a bypassing request looks nothing up"
    assert found["radixloop_prefix_cache_hits_tokens_total"] == sum(usage.cached_tokens for usage in usages) == 39 + 40
    assert found["radixloop_computed_prompt_tokens_total"] == sum(usage.computed_tokens for usage in usages)
    assert found["radixloop_generation_tokens_total"] == 16
    assert found['radixloop_requests_total{outcome="finished"}'] == 4
    assert found["radixloop_request_prompt_tokens_count"] == 4
    assert found["radixloop_request_prompt_tokens_sum"] == 200
    assert found["radixloop_request_computed_tokens_sum"] == found["radixloop_computed_prompt_tokens_total"]
    assert found["radixloop_request_generation_tokens_sum"] == 16
    assert found["radixloop_inter_token_latency_seconds_count"] == 4 * 3
    assert found["radixloop_time_to_first_token_seconds_count"] == 4
    ttft = sum(reply.finished.timing.ttft_s for reply in replies)
    assert found["radixloop_time_to_first_token_seconds_sum"] == pytest.approx(ttft)
    assert found['radixloop_request_seconds_bucket{le="+Inf"}'] == 4
    assert found["radixloop_request_queue_seconds_sum"] <= ttft
    assert found["radixloop_request_prefill_seconds_sum"] <= ttft


def test_the_pool_and_the_tree_are_the_stores(harness: Harness, server: MetricsServer) -> None:
    for seed in range(5):
        harness.run(prompt(30) + prompt(11, seed), max_tokens=2)
    stats = harness.check_idle()
    found = scrape(server)
    assert found['radixloop_pool_blocks{state="free"}'] == stats.free_blocks
    assert found['radixloop_pool_blocks{state="cached"}'] == stats.cached_blocks > 0
    assert found['radixloop_pool_blocks{state="active"}'] == 0
    assert found["radixloop_pool_usage_ratio"] == 0
    assert found["radixloop_pool_block_size_tokens"] == 16
    assert found["radixloop_pool_unused_slots"] == stats.unused_slots > 0
    held = (stats.total_blocks - stats.free_blocks) * stats.block_size * harness.loaded.info.kv_bytes_per_token
    assert found['radixloop_kv_held_bytes{dtype="fp32"}'] == held > 0
    assert found["radixloop_kv_saved_by_precision_bytes"] == 0 == found["radixloop_kv_saved_by_sharing_bytes"]
    assert found["radixloop_cached_tokens"] == stats.cached_tokens
    assert found["radixloop_tree_nodes"] == stats.nodes == 6
    assert found["radixloop_tree_depth_nodes"] == stats.max_depth == 2
    assert found["radixloop_tree_namespaces"] == 1
    assert found["radixloop_copied_tokens_total"] == stats.copied_tokens > 0
    harness.evict_all()
    assert scrape(server)["radixloop_evicted_tokens_total"] == stats.cached_tokens
    assert scrape(server)["radixloop_cached_tokens"] == 0


def test_what_runs_is_told(harness: Harness, server: MetricsServer) -> None:
    found = scrape(server)
    (model,) = [name for name in found if name.startswith("radixloop_model_info")]
    assert f'fingerprint="{harness.loaded.info.fingerprint}"' in model
    assert 'device="cpu"' in model
    assert found["radixloop_engine_up"] == 1
    assert found["radixloop_sessions"] == 5
    assert found["radixloop_kv_bytes_per_token"] == harness.loaded.info.kv_bytes_per_token
    redis = [found[f"radixloop_redis_{name}"] for name in ("up", "lag_seconds", "outages_total", "rewrites_total")]
    assert [*redis, found["radixloop_redis_dropped_events_total"]] == [1, 0.25, 2, 3, 4]
    assert found["process_resident_memory_bytes"] > 0


def test_a_busy_engine_delays_no_scrape(harness: Harness, server: MetricsServer) -> None:
    harness.run(prompt(40), max_tokens=2)
    before = scrape(server)
    release = threading.Event()
    harness.engine.call(lambda store: release.wait(60))
    try:
        for _ in range(3):
            during = scrape(server)
            assert during["radixloop_cached_tokens"] == before["radixloop_cached_tokens"]
            assert during["radixloop_prompt_tokens_total"] == 40
        assert during["radixloop_pool_stats_age_seconds"] > 0.5, "and the scrape says how old the figures are"
        assert len(harness.engine._inbox) <= 1, "scrapes do not pile up in front of the engine"
    finally:
        release.set()
    harness.run(prompt(60, 3), max_tokens=2)
    assert scrape(server)["radixloop_cached_tokens"] > before["radixloop_cached_tokens"]


def test_an_engine_that_has_stopped_is_scraped(tiny: LoadedModel) -> None:
    harness = Harness(tiny)
    metrics = RuntimeMetrics(harness.engine, tiny.info, sessions=lambda: 0)
    server = metrics.serve("127.0.0.1", 0)
    try:
        found = scrape(server)
        assert found["radixloop_engine_up"] == 0
        assert "radixloop_cached_tokens" not in found, "the engine has said nothing yet"
        assert not any(name.startswith("radixloop_redis") for name in found)
        harness.engine.start()
        harness.run(prompt(40), max_tokens=2)
        assert scrape(server)["radixloop_cached_tokens"] == 41
        harness.engine.shutdown(0)
        found = scrape(server)
        assert (found["radixloop_engine_up"], found["radixloop_cached_tokens"]) == (0, 41)
    finally:
        server.close()


def test_preemptions_and_evictions_show(tiny: LoadedModel) -> None:
    with running(tiny, num_blocks=8, block_size=4) as harness:
        server = RuntimeMetrics(harness.engine, tiny.info, sessions=lambda: 0).serve("127.0.0.1", 0)
        replies = [harness.submit(prompt(8, seed), max_tokens=14) for seed in range(4)]
        preempted = sum(reply.finished.timing.preemptions for reply in replies)
        found = scrape(server)
        server.close()
    assert found["radixloop_preemptions_total"] == preempted > 0
    assert found["radixloop_evicted_blocks_total"] > 0
    assert found["radixloop_evicted_tokens_total"] > 0


def test_names_follow_the_rules(harness: Harness, server: MetricsServer) -> None:
    with urllib.request.urlopen(server.url, timeout=30) as answer:
        text = answer.read().decode()
    families = [f for f in text_string_to_metric_families(text) if not f.name.startswith("process_")]
    assert len(families) > 30
    for family in families:
        assert re.fullmatch(r"radixloop_[a-z_]+", family.name)
        assert family.documentation.endswith("."), family.name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), family.name
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_tokens")), f"{family.name} has no unit"


def test_a_taken_port_is_named(harness: Harness, server: MetricsServer) -> None:
    metrics = RuntimeMetrics(harness.engine, harness.loaded.info, sessions=lambda: 0)
    for asked in (metrics.serve, check_port):
        with pytest.raises(BadConfig, match=f"^{server.port}: .*in use") as caught:
            asked("127.0.0.1", server.port)
        assert caught.value.field == "metrics_port"
    check_port("127.0.0.1", 0)
    check_port("localhost", 0)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_this_machines_is_named(harness: Harness, host: str) -> None:
    metrics = RuntimeMetrics(harness.engine, harness.loaded.info, sessions=lambda: 0)
    for asked in (metrics.serve, check_port):
        with pytest.raises(BadConfig, match=f"^{host}: ") as caught:
            asked(host, 0)
        assert caught.value.field == "metrics_host"


def record(outcome: str, output: int) -> RequestRecord:
    timing = Timing(0.1, 0.2, 0.3, 0.01, 0.01, 0.01, 0.5, 0)
    return RequestRecord(Usage(10, 5, output, 5), timing, (0.01,) * max(0, output - 1), outcome)


@pytest.mark.parametrize(
    ("outcome", "output", "counted"),
    [
        ("finished", 3, {"ttft": 1, "prefill": 1, "total": 1, "gaps": 2}),
        ("finished", 0, {"ttft": 0, "prefill": 1, "total": 1, "gaps": 0}),
        ("cancelled", 3, {"ttft": 1, "prefill": 1, "total": 0, "gaps": 2}),
        ("cancelled", 0, {"ttft": 0, "prefill": 0, "total": 0, "gaps": 0}),
        ("failed", 0, {"ttft": 0, "prefill": 0, "total": 0, "gaps": 0}),
    ],
)
def test_a_stage_that_was_not_reached_is_not_counted(outcome: str, output: int, counted: dict[str, int]) -> None:
    histograms = RequestHistograms()
    histograms.record(record(outcome, output))
    counts = {
        sample.name: sample.value
        for family in histograms.families()
        for sample in family.samples
        if sample.name.endswith("_count")
    }
    names = {
        "ttft": "time_to_first_token_seconds",
        "prefill": "request_prefill_seconds",
        "total": "request_seconds",
        "gaps": "inter_token_latency_seconds",
    }
    assert {short: counts[f"radixloop_{name}_count"] for short, name in names.items()} == counted


def test_histogram_counts_like_prometheus_own() -> None:
    from prometheus_client import CollectorRegistry
    from prometheus_client import Histogram as Reference

    bounds = (0.5, 1.0, 2.0)
    values = [0.0, 0.5, 0.500001, 1.0, 1.5, 2.0, 2.5, 100.0]
    reference = Reference("h", "d", registry=CollectorRegistry(), buckets=bounds)
    ours = Histogram("h", "d", bounds)
    for value in values:
        reference.observe(value)
    ours.observe(values[:3])
    ours.observe(values[3:])
    ours.observe([])

    def samples(family: Any) -> dict[tuple[str, str], float]:
        return {(s.name, str(s.labels)): s.value for s in family.samples if not s.name.endswith("_created")}

    assert samples(ours.family()) == samples(next(iter(reference.collect())))


def test_every_part_of_every_step_is_timed(harness: Harness, server: MetricsServer) -> None:
    harness.run(prompt(40), max_tokens=6)
    metrics = scrape(server)
    steps = metrics["radixloop_engine_steps_total"]
    assert steps == 6
    for part in PARTS:
        assert metrics[f'radixloop_step_seconds_count{{part="{part}"}}'] == steps
    assert metrics['radixloop_step_seconds_sum{part="forward"}'] > 0


def test_every_missed_token_has_one_cause(harness: Harness, server: MetricsServer) -> None:
    head = prompt(100)
    for tokens in (head, head, [*head[:60], *prompt(40, 5)], prompt(900, 6), head):
        harness.run(tokens, max_tokens=4)
    harness.run(head, max_tokens=4, bypass_cache=True)
    found = scrape(server)
    missed = {name: value for name, value in found.items() if name.startswith("radixloop_missed_tokens_total")}
    queries, hits = (
        found["radixloop_prefix_cache_queries_tokens_total"],
        found["radixloop_prefix_cache_hits_tokens_total"],
    )
    assert sum(missed.values()) == queries - hits
    assert missed['radixloop_missed_tokens_total{cause="never_seen"}'] == 1000
    assert missed['radixloop_missed_tokens_total{cause="diverged"}'] == 40
    assert missed['radixloop_missed_tokens_total{cause="evicted"}'] > 0
    assert missed['radixloop_missed_tokens_total{cause="in_flight"}'] == 0


def test_holds_and_refusals_are_counted(harness: Harness) -> None:
    books = KeepingBooks(lease_refusals=3, holds_granted=4, holds_refused=2, holds_waiting=1, tools_known=7)
    metrics = RuntimeMetrics(harness.engine, harness.loaded.info, sessions=lambda: 0, keeping=lambda: books)
    serving = metrics.serve("127.0.0.1", 0)
    try:
        found = scrape(serving)
    finally:
        serving.close()
    assert found["radixloop_lease_refusals_total"] == 3
    assert found['radixloop_tool_holds_total{outcome="granted"}'] == 4
    assert found['radixloop_tool_holds_total{outcome="refused"}'] == 2
    assert (found["radixloop_tool_waits"], found["radixloop_tools_known"]) == (1, 7)
    assert found["radixloop_leases"] == found["radixloop_leased_tokens"] == 0
