"""Metrics of what missed and why, and of what is kept on request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from radix import Cause
from runtime.counters import EngineCounters
from runtime.retention.keeping import KeepingBooks


def misses(books: EngineCounters) -> Iterator[Metric]:
    """Missed tokens by cause; every cause from the start, so that a rate is 0 and not absent."""
    missed = CounterMetricFamily(
        "radixloop_missed_tokens",
        "Prompt tokens that were looked up and had to be computed, by cause as of admission.",
        labels=["cause"],
    )
    for cause in Cause:
        if cause is not Cause.CACHED:
            missed.add_metric([cause.value], books.missed_tokens.get(cause, 0))
    yield missed


def holds(books: KeepingBooks) -> Iterator[Metric]:
    """Leases that were refused, and what was held while it waited for a tool."""
    yield CounterMetricFamily(
        "radixloop_lease_refusals", "Leases that would have passed a cap, tool holds included.", books.lease_refusals
    )
    held = CounterMetricFamily(
        "radixloop_tool_holds", "Times that something began to wait for a tool, by outcome.", labels=["outcome"]
    )
    held.add_metric(["granted"], books.holds_granted)
    held.add_metric(["refused"], books.holds_refused)
    yield held
    yield GaugeMetricFamily(
        "radixloop_tool_waits", "Sessions and conversations that wait for a tool.", books.holds_waiting
    )
    yield GaugeMetricFamily("radixloop_tools_known", "Tools whose pauses are remembered.", books.tools_known)
