"""Axes: round ticks, and places as a share of the plot's width, so that one picture fits every screen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Axis:
    """From 0 to `end`, over `length` (percent of the width, or pixels) that begins at `offset`."""

    end: float
    length: float = 100.0
    offset: float = 0.0

    def __call__(self, value: float) -> float:
        return round(self.offset + self.length * (value / self.end if self.end else 0), 3)

    def ticks(self, most: int) -> Iterator[float]:
        """0 and round numbers up to the end, at most `most` after 0."""
        step = round_step(self.end, most)
        for i in range(int(self.end / step + 1e-9) + 1):
            yield i * step


def round_step(end: float, most: int) -> float:
    """The smallest 1, 2, 2.5 or 5 times a power of ten that goes into `end` at most `most` times."""
    if end <= 0:
        return 1.0
    raw = end / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step * power for step in _STEPS if step * power >= raw * (1 - 1e-9))


def round_end(highest: float, most: int) -> float:
    """`highest` rounded up to a tick."""
    step = round_step(highest, most)
    return max(step, math.ceil(highest / step - 1e-9) * step)


def spread(count: int, most: int) -> Sequence[int]:
    """Indices of at most about `most` of `count` things, evenly, the first and the last among them."""
    if count <= most:
        return range(count)
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
