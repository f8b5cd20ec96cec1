"""Prometheus metrics of the KV events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.publishing.kv_events import KvEventHub

if TYPE_CHECKING:
    from runtime.publishing.zmq_publisher import ZmqCounters


class EventMetrics(Collector):
    """Counts of batches; those of ZeroMQ where events are published there."""

    def __init__(self, hub: KvEventHub, zmq: ZmqCounters | None) -> None:
        self._hub = hub
        self._zmq = zmq

    def collect(self) -> Iterator[Metric]:
        yield _counter("batches", "Batches of KV events since the start.", self._hub.next_sequence)
        if self._zmq is not None:
            books = self._zmq
            yield _counter("zmq_published_batches", "Batches of KV events sent over ZeroMQ.", books.published)
            yield _counter("zmq_dropped_batches", "Batches never sent, since the publisher fell behind.", books.dropped)
            yield _counter("zmq_replays", "Requests of subscribers for batches that they missed.", books.replays)
            yield _counter("zmq_snapshots", "Of these, answered with all that is cached.", books.snapshots)

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"radixloop_kv_event_{name}", documentation, value)
