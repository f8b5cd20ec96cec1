"""How long agents wait for their tools, learned by the tool's name."""

from __future__ import annotations

from collections import OrderedDict

DEFAULT_PAUSE_S = 30.0
_SHORTEST_S = 0.05
_GROWTH = 1.25
# From 50 ms to more than half a day, each bucket a quarter longer than the one before.
_BUCKETS = 64
# Counts are halved here, so that a tool that became slower is believed soon.
_COUNT_LIMIT = 1000


class ToolPauses:
    """A histogram of pauses for each of the tools that were used last, at most `max_tools`."""

    def __init__(self, percentile: float = 90.0, max_tools: int = 256) -> None:
        self._share = percentile / 100
        self._max_tools = max_tools
        # Least recently recorded first.
        self._counts: OrderedDict[str, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def record(self, tool: str, seconds: float) -> None:
        """A session went on `seconds` after it began to wait for `tool`."""
        counts = self._counts.setdefault(tool, [0] * _BUCKETS)
        self._counts.move_to_end(tool)
        counts[_bucket(seconds)] += 1
        if sum(counts) > _COUNT_LIMIT:
            counts[:] = [count // 2 for count in counts]
        if len(self._counts) > self._max_tools:
            self._counts.popitem(last=False)

    def expected_s(self, tool: str) -> float:
        """Seconds within which the given percentile of the tool's pauses ended; a default before any was seen."""
        counts = self._counts.get(tool)
        if counts is None:
            return DEFAULT_PAUSE_S
        needed = self._share * sum(counts)
        reached = 0
        for bucket, count in enumerate(counts):
            reached += count
            if reached >= needed and reached:
                return _upper_edge(bucket)
        return _upper_edge(_BUCKETS - 1)


def _upper_edge(bucket: int) -> float:
    return float(_SHORTEST_S * _GROWTH**bucket)


def _bucket(seconds: float) -> int:
    return next((bucket for bucket in range(_BUCKETS) if seconds <= _upper_edge(bucket)), _BUCKETS - 1)
