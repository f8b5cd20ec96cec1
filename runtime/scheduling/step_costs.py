"""How much longer a decode step takes with more rows, learned while serving.

The time of a step with `extra` draft rows is `1 + jump + slope * extra / batch` times that of the same step without
any. Both numbers are learned by normalised least mean squares from pairs of steps that follow each other and compute
the same sequences, so that neither the length of their contexts nor the pace of the machine at that hour enters.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

# How far a pair moves an estimate towards itself, in the end and at first, and the largest error that it may report: a
# step that something else on the machine held up says nothing.
_RATE = 0.15
_FIRST_RATE = 0.5
_LARGEST_ERROR = 0.4
# Two steps that hardly differ in their rows tell more about the weather than about rows.
_LEAST_CONTRAST = 0.3
# After so many steps with drafts one without is due, to compare them with: soon at first, later seldom.
_FIRST_CHECK = 3
_LAST_CHECK = 96
# Weight of the newest step in the average times.
_NEWEST = 0.1
# Prompt rows from which on a step's time is divided among its rows.
_MANY_ROWS = 32


class _Curve:
    """The two numbers, for about one size of batch. They begin with what was measured with small matrices on a CPU."""

    def __init__(self, batch: int) -> None:
        self.jump = 0.1
        self.slope = 0.05 * math.sqrt(batch)
        self._checks = 0
        self._unchecked = 0
        self._interval = _FIRST_CHECK

    def ratio(self, more: float) -> float:
        return 1 + self.jump + self.slope * more if more else 1.0

    @property
    def check_due(self) -> bool:
        return self._unchecked >= self._interval

    def stepped(self, more: float) -> None:
        self._unchecked = self._unchecked + 1 if more else 0

    def compare(self, more: float, more_before: float, log_times: float) -> None:
        ratio, ratio_before = self.ratio(more), self.ratio(more_before)
        error = log_times - math.log(ratio / ratio_before)
        error = max(-_LARGEST_ERROR, min(_LARGEST_ERROR, error))
        by_jump = (more > 0) / ratio - (more_before > 0) / ratio_before
        by_slope = more / ratio - more_before / ratio_before
        # What drafts cost shows beside a step without any; two sizes of drafts say less about it.
        rate = _RATE / 3
        if not (more and more_before):
            rate = max(_RATE, _FIRST_RATE / (1 + self._checks))
            self._checks += 1
            if not more:
                self._interval = min(2 * self._interval, _LAST_CHECK)
        rate /= _LEAST_CONTRAST + by_jump**2 + by_slope**2
        self.jump = max(0.0, self.jump + rate * error * by_jump)
        self.slope = max(0.0, self.slope + rate * error * by_slope)


class StepCosts:
    """Step times by sequences (`batch`) and draft rows (`extra`); and what one row beside a prompt chunk costs."""

    def __init__(self) -> None:
        self._curves: dict[int, _Curve] = {}
        self._plain_s: dict[int, float] = {}
        self._row_s: float | None = None
        self._last: tuple[Hashable, int, int, float] | None = None

    def ratio(self, batch: int, extra: int) -> float:
        """Time of a decode step with so many draft rows, divided by that of the same step without any."""
        return self._curve(batch).ratio(extra / batch)

    def check_due(self, batch: int) -> bool:
        """Whether a step without drafts would say whether the ratios are right. That may differ with every batch."""
        return self._curve(batch).check_due

    def plain_s(self, batch: int) -> float | None:
        """Seconds of a decode step without draft rows, lately; None before the first one."""
        return self._plain_s.get(_bucket(batch))

    @property
    def row_s(self) -> float | None:
        """Seconds that a row took in steps with a prompt chunk, lately; None before the first one."""
        return self._row_s

    def decoded(self, who: Hashable, batch: int, extra: int, seconds: float) -> None:
        """A step took so long that decoded `batch` sequences, those that `who` names, and nothing else."""
        if seconds <= 0:
            return
        plain, bucket = seconds / self.ratio(batch, extra), _bucket(batch)
        self._plain_s[bucket] = plain + (1 - _NEWEST) * (self._plain_s.get(bucket, plain) - plain)
        last, self._last = self._last, (who, batch, extra, seconds)
        self._curve(batch).stepped(extra)
        if last is not None and last[:2] == (who, batch) and extra != last[2]:
            self._curve(batch).compare(extra / batch, last[2] / batch, math.log(seconds / last[3]))

    def prefilled(self, rows: int, seconds: float) -> None:
        """A step took so long that computed `rows` tokens, most of them of prompts."""
        self._last = None
        if rows < _MANY_ROWS:
            return
        row_s = seconds / rows
        self._row_s = row_s + (1 - _NEWEST) * ((self._row_s if self._row_s is not None else row_s) - row_s)

    def _curve(self, batch: int) -> _Curve:
        bucket = _bucket(batch)
        if bucket not in self._curves:
            self._curves[bucket] = _Curve(batch)
        return self._curves[bucket]


def _bucket(batch: int) -> int:
    """0 for 1, then 2, 3-4, 5-8, 9-16 …"""
    return (batch - 1).bit_length()
