"""Where the time of steps went, as one histogram with a label for the part."""

from __future__ import annotations

from prometheus_client.core import HistogramMetricFamily

from runtime.monitoring.histograms import Histogram
from runtime.monitoring.step_clock import PARTS, StepRecord

# From a scheduler with nothing to decide to a long chunk on a CPU.
STEP_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0,
)  # fmt: skip
_NAME = "radixloop_step_seconds"
_DOCUMENTATION = (
    "Time of the engine's steps by part. All parts but forward are work of the host that the model waits for."
)


class StepHistograms:
    """Counts the parts of every step that ran the model."""

    def __init__(self) -> None:
        self._parts = {part: Histogram(_NAME, _DOCUMENTATION, STEP_S) for part in PARTS}

    def record(self, record: StepRecord) -> None:
        """Count a step; called on the engine thread."""
        for part, seconds in record.seconds.items():
            self._parts[part].observe_one(seconds)

    def family(self) -> HistogramMetricFamily:
        """The counts so far, for a scrape."""
        family = HistogramMetricFamily(_NAME, _DOCUMENTATION, labels=["part"])
        for part, histogram in self._parts.items():
            buckets, total = histogram.read()
            family.add_metric([part], buckets, total)
        return family
