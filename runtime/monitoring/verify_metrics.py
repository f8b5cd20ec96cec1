"""Prometheus metrics of verified hits."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.hit_verifier import VerifyBooks


class VerifyMetrics(Collector):
    """What `--verify-hits` found."""

    def __init__(self, books: VerifyBooks) -> None:
        self._books = books

    def collect(self) -> Iterator[Metric]:
        books = self._books
        verified = CounterMetricFamily(
            "radixloop_verified_hits",
            "Requests that hit and were computed again without the cache. equal: the same bits; close: rounding; "
            "mismatch: a wrong answer; skipped: no idle moment or no memory to verify in.",
            labels=["outcome"],
        )
        for outcome, count in books.outcomes.items():
            verified.add_metric([outcome], count)
        yield verified
        yield CounterMetricFamily(
            "radixloop_verified_tokens", "Tokens of replies whose choice was checked.", books.tokens
        )
        yield CounterMetricFamily(
            "radixloop_verified_flips", "Of these, tokens that would be others without the cache.", books.flips
        )
        yield GaugeMetricFamily(
            "radixloop_verify_largest_logit_difference",
            "Largest difference of any logit between a hit and its recomputation since the start.",
            books.largest_difference,
        )

    def describe(self) -> Iterator[Metric]:
        return iter(())
