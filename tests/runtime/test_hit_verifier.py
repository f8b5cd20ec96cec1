"""Verification of live hits: what it reports about good and about corrupted KV, and that nobody notices it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from runtime.cli import app
from runtime.hit_check import check_hits, hit_lengths
from runtime.hit_verifier import MAX_WAITING, HitVerifier, VerifyBooks
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.monitoring.verify_metrics import VerifyMetrics
from tests.runtime.engine_harness import WAIT_S, Harness, running
from tests.timing import eventually

PROMPT = np.random.default_rng(4).integers(10, 250, 90).tolist()


@contextmanager
def verifying(loaded: LoadedModel, **config: Any) -> Iterator[tuple[Harness, HitVerifier]]:
    with running(loaded, verify_hits=1.0, **config) as harness:
        assert harness.engine.verifier is not None
        yield harness, harness.engine.verifier


def settled(harness: Harness) -> VerifyBooks:
    """The books, once nothing waits to be verified."""
    verifier = harness.engine.verifier
    assert verifier is not None
    assert eventually(lambda: not harness.engine.call(lambda _: verifier.pending).result(WAIT_S))
    return verifier.books


def corrupt_last_cached_value(harness: Harness) -> None:
    """As if one slot had been written by somebody else."""

    def spoil(store: Any) -> None:
        seq = store.open(np.array(PROMPT, np.int32), harness.namespace)
        slot = int(seq.table[(seq.matched - 1) // 16]) * 16 + (seq.matched - 1) % 16
        store.close(seq)
        for kv in harness.engine._runner.pool.layers.values():
            kv.value_slots[slot] += 3.0

    harness.engine.call(spoil).result(WAIT_S)


def test_good_hits_are_close_and_flip_nothing(tiny: LoadedModel) -> None:
    with verifying(tiny) as (harness, _):
        harness.run(PROMPT, max_tokens=5)
        assert settled(harness).outcomes == {"equal": 0, "close": 0, "mismatch": 0, "skipped": 0}
        harness.run(PROMPT, max_tokens=5)
        harness.run([*PROMPT[:33], 5, 6, 7], max_tokens=12)
        books = settled(harness)
        assert books.outcomes["equal"] + books.outcomes["close"] == 2
        assert books.outcomes["mismatch"] == books.outcomes["skipped"] == 0
        assert (books.tokens, books.flips) == (5 + 8, 0)
        assert books.largest_difference < 1e-3


def test_corrupted_kv_is_reported(tiny: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    with verifying(tiny) as (harness, _):
        harness.run(PROMPT, prefill_only=True)
        corrupt_last_cached_value(harness)
        harness.run(PROMPT, max_tokens=8)
        books = settled(harness)
        assert books.outcomes["mismatch"] == 1
        assert books.largest_difference > 0.1
        assert "a hit of 89 of 90 prompt tokens answers otherwise than without the cache" in caplog.text


def test_in_deterministic_mode_a_single_bit_is_a_mismatch(tiny_model: Path) -> None:
    loaded = load_model(str(tiny_model), dtype="fp32", device="cpu", deterministic=True)
    with verifying(loaded) as (harness, _):
        harness.run(PROMPT, max_tokens=8)
        harness.run(PROMPT, max_tokens=8)
        books = settled(harness)
        assert books.outcomes == {"equal": 1, "close": 0, "mismatch": 0, "skipped": 0}
        assert books.largest_difference == 0

        def nudge(_: Any) -> None:
            for kv in harness.engine._runner.pool.layers.values():
                kv.value_slots.mul_(1 + 1e-6)

        harness.engine.call(nudge).result(WAIT_S)
        harness.run(PROMPT, max_tokens=8)
        assert settled(harness).outcomes["mismatch"] == 1


def test_sampled_replies_are_compared_by_their_first_logits_alone(tiny: LoadedModel) -> None:
    with verifying(tiny) as (harness, _):
        harness.run(PROMPT, max_tokens=2)
        harness.run(PROMPT, max_tokens=6, temperature=1.0, seed=3)
        assert settled(harness).tokens == 1


def test_neither_tree_nor_books_notice(tiny: LoadedModel) -> None:
    def books(share: float) -> tuple[Any, ...]:
        with running(tiny, verify_hits=share, num_blocks=12) as harness:
            for length in (90, 90, 50, 90):
                harness.run(PROMPT[:length], max_tokens=4)
            if share:
                assert sum(settled(harness).outcomes.values()) == 3
            stats, counters = harness.check_idle(), harness.engine.counters
            return stats, counters.steps, counters.computed_tokens, counters.hit_tokens, counters.prompt_tokens

    assert books(1.0) == books(0.0)


def test_live_work_comes_first(tiny: LoadedModel) -> None:
    with verifying(tiny) as (harness, verifier):
        harness.run(PROMPT, max_tokens=2)
        seen: list[int] = []
        # While any request runs, samples only gather.
        replies = [
            harness.submit(
                PROMPT, max_tokens=20, on_event=lambda *_: seen.append(sum(verifier.books.outcomes.values()))
            )
            for _ in range(3)
        ]
        for reply in replies:
            reply.wait()
        assert set(seen) == {0}
        assert sum(settled(harness).outcomes.values()) == 3


def test_samples_that_nobody_has_time_for_are_skipped(tiny: LoadedModel) -> None:
    with verifying(tiny, max_running=MAX_WAITING + 4) as (harness, _):
        harness.run(PROMPT, max_tokens=2)
        for reply in [harness.submit(PROMPT, max_tokens=30) for _ in range(MAX_WAITING + 4)]:
            reply.wait()
        books = settled(harness)
        assert sum(books.outcomes.values()) == MAX_WAITING + 4
        assert books.outcomes["skipped"] == 4


def test_a_failure_to_verify_is_not_a_failure_to_serve(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    with verifying(tiny) as (harness, _):
        harness.run(PROMPT, max_tokens=2)
        monkeypatch.setattr("runtime.hit_verifier.ModelRunner", no_memory)
        harness.run(PROMPT, max_tokens=2)
        assert settled(harness).outcomes["skipped"] == 1
        assert len(harness.run(PROMPT, max_tokens=3).tokens) == 3


def test_a_share_of_the_hits_is_taken(tiny: LoadedModel) -> None:
    with running(tiny, verify_hits=0.5) as harness:
        harness.run(PROMPT, max_tokens=1)
        for _ in range(24):
            harness.run(PROMPT, max_tokens=1)
        # Both bounds fail once in 17 million runs.
        assert 0 < sum(settled(harness).outcomes.values()) < 24


def test_off_by_default(tiny: LoadedModel) -> None:
    with running(tiny) as harness:
        assert harness.engine.verifier is None


def test_metrics() -> None:
    registry = CollectorRegistry()
    registry.register(VerifyMetrics(VerifyBooks({"equal": 3, "close": 2, "mismatch": 1, "skipped": 0}, 40, 1, 0.25)))
    assert registry.get_sample_value("radixloop_verified_hits_total", {"outcome": "mismatch"}) == 1
    assert registry.get_sample_value("radixloop_verified_tokens_total") == 40
    assert registry.get_sample_value("radixloop_verified_flips_total") == 1
    assert registry.get_sample_value("radixloop_verify_largest_logit_difference") == 0.25


def test_lengths_of_hits_lie_beside_borders() -> None:
    assert hit_lengths(100) == [1, 15, 16, 17, 50, 98, 99]
    assert hit_lengths(2) == [1]


def test_the_check_verifies_each_of_its_hits(tiny: LoadedModel) -> None:
    books = check_hits(tiny, 100)
    assert books.outcomes["equal"] + books.outcomes["close"] == 7
    assert (books.tokens, books.flips) == (7 * 8, 0)


def test_the_command_checks_a_model(tiny_model: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "--model", str(tiny_model), "--deterministic", "--prompt-tokens", "40"])
    assert result.exit_code == 0, result.output
    assert "7 hits verified: 7 with the same bits, 0 equal to rounding, 0 wrong (0 skipped)" in result.stdout
    assert "largest difference of a logit 0; 0 of 56 tokens would be others" in result.stdout


@pytest.mark.parametrize(
    ("mismatches", "exit_code"),
    [(0, 0), (2, 1)],
)
def test_the_command_asks_a_runtime(mismatches: int, exit_code: int) -> None:
    from prometheus_client import start_http_server

    registry = CollectorRegistry()
    books = VerifyBooks({"equal": 3, "close": 2, "mismatch": mismatches, "skipped": 0}, 40, 1, 0.25)
    registry.register(VerifyMetrics(books))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        result = CliRunner().invoke(app, ["verify", "--metrics-url", url])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert result.exit_code == exit_code
    assert f"{5 + mismatches} hits verified: 3 with the same bits" in result.stdout


def test_the_command_says_why_it_knows_nothing() -> None:
    from prometheus_client import start_http_server

    server, thread = start_http_server(0, "127.0.0.1", CollectorRegistry())
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    result = CliRunner().invoke(app, ["verify", "--metrics-url", url])
    server.shutdown()
    server.server_close()
    thread.join()
    assert result.exit_code == 2
    assert "verifies no hits: start it with --verify-hits SHARE" in result.stderr
    result = CliRunner().invoke(app, ["verify", "--metrics-url", url])
    assert result.exit_code == 2
    assert "refused" in result.stderr
