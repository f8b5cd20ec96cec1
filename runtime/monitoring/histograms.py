"""Bucket counts that the engine's thread can afford: a whole request's gaps between tokens in one call."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts values by upper bound, for one Prometheus histogram.

    Args:
        bounds: ascending upper bounds; a last one at infinity is added.
    """

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self.name = name
        self._documentation = documentation
        self._upper = [float(bound) for bound in bounds]
        self._bounds = np.array(self._upper, dtype=np.float64)
        self._labels = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, values: Iterable[float]) -> None:
        """Count each value; from any thread."""
        array = np.fromiter(values, dtype=np.float64)
        if len(array) == 0:
            return
        counts = np.bincount(np.searchsorted(self._bounds, array, side="left"), minlength=len(self._counts))
        with self._lock:
            self._counts += counts
            self._sum += float(array.sum())

    def observe_one(self, value: float) -> None:
        """Count one value, in a microsecond; from any thread."""
        at = bisect_left(self._upper, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def family(self) -> HistogramMetricFamily:
        """The counts so far, for a scrape."""
        buckets, total = self.read()
        return HistogramMetricFamily(self.name, self._documentation, buckets=buckets, sum_value=total)

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum of all values."""
        with self._lock:
            cumulative, total = np.cumsum(self._counts).tolist(), self._sum
        return list(zip(self._labels, cumulative, strict=True)), total
