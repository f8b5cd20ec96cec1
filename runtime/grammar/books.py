"""What grammars cost, counted."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.monitoring.histograms import Histogram

_COMPILE_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_MASK_BOUNDS = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


class GrammarBooks(Collector):
    """Written by the compiler's threads and the engine's, read by a scrape."""

    def __init__(self) -> None:
        self.lookups = 0
        self.hits = 0
        self.refused = 0
        self.cached = 0
        self.cached_bytes = 0
        self.compile = Histogram(
            "radixloop_grammar_compile_seconds",
            "Time to compile a grammar that was not cached, refused ones too.",
            _COMPILE_BOUNDS,
        )
        self.mask = Histogram(
            "radixloop_grammar_mask_seconds",
            "Time to find the tokens that a choice's grammar allows in a step, beside the forward pass.",
            _MASK_BOUNDS,
        )
        self.wait = Histogram(
            "radixloop_grammar_mask_wait_seconds",
            "Time that a step waited for masks after its forward pass.",
            _MASK_BOUNDS,
        )

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("radixloop_grammar_lookups", "Compiled grammars asked for.", self.lookups)
        yield CounterMetricFamily("radixloop_grammar_hits", "Of these, found in the cache.", self.hits)
        yield CounterMetricFamily("radixloop_grammar_refused", "Of these, no grammar or beyond a bound.", self.refused)
        yield GaugeMetricFamily("radixloop_grammar_cached", "Compiled grammars in the cache.", self.cached)
        yield GaugeMetricFamily("radixloop_grammar_cached_bytes", "Memory that they take.", self.cached_bytes)
        yield self.compile.family()
        yield self.mask.family()
        yield self.wait.family()

    def describe(self) -> Iterator[Metric]:
        return iter(())
