"""Metrics of the tiers behind the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.tiers.books import TiersBooks

_GAUGES = {
    "blocks": "Slots for blocks in a tier behind the pool.",
    "used_blocks": "Of these, those that hold a block or are about to.",
    "given_up": "1 where a tier did not answer in time, and is not used until the next start.",
}
_COUNTERS = {
    "fetched_tokens": "Prompt tokens that were fetched from a tier in place of being computed.",
    "written_blocks": "Blocks that were written to a tier.",
    "failed_blocks": "Blocks that could not be written to a tier, or not be read from it.",
    "lost_blocks": "Blocks that left a tier and were in no other.",
}


class TierMetrics(Collector):
    """Reads the books when somebody scrapes, from whatever thread."""

    def __init__(self, books: Callable[[], TiersBooks]) -> None:
        self._books = books

    def collect(self) -> Iterator[Metric]:
        books = self._books()
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"radixloop_tier_{name}", text, labels=["tier"])
            for tier in books.tiers:
                gauge.add_metric([tier.name], float(getattr(tier, name)))
            yield gauge
        held = GaugeMetricFamily("radixloop_tier_used_bytes", "Bytes of the used blocks.", labels=["tier"])
        for tier in books.tiers:
            held.add_metric([tier.name], tier.used_blocks * tier.block_bytes)
        yield held
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"radixloop_tier_{name}", text, labels=["tier"])
            for tier in books.tiers:
                counter.add_metric([tier.name], getattr(tier, name))
            yield counter
        yield CounterMetricFamily(
            "radixloop_tier_declined_tokens",
            "Prompt tokens that a tier held and that were cheaper to compute.",
            books.declined_tokens,
        )

    def describe(self) -> Iterator[Metric]:
        return iter(())
