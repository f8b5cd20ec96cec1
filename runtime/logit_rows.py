"""A step's logits, and the likeliest token of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from runtime.errors import EngineFailed


class BadLogits(EngineFailed):
    """Rows of logits without a finite largest value. `rows` are their indices; no sampler has drawn yet."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(
            f"the model's logits hold NaN or infinity (rows {list(rows)} of the batch), so no token is chosen"
        )
        self.rows = rows


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Float logits `[rows, vocab]`, on any device.

    Attributes:
        best: for each row the id of its largest logit, the first of equals.
        bad: rows that hold NaN or whose largest value is infinite.
    """

    logits: torch.Tensor
    best: tuple[int, ...]
    bad: tuple[int, ...]

    @classmethod
    def of(cls, logits: torch.Tensor) -> LogitRows:
        # One pass finds both: a maximum is NaN when any entry is, so the largest values speak for their whole rows.
        # NumPy's takes a tenth of torch's time on the CPU; elsewhere both come over in one copy.
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            values = logits.detach().numpy()
            best = values.argmax(axis=1)
            largest = values[np.arange(len(best)), best]
        else:
            # As numbers of one dtype they are one copy; float32 holds ids up to 2^24.
            found = logits.detach().max(dim=-1)
            largest, best = torch.stack([found.values.float(), found.indices.float()]).cpu().numpy()
            best = best.astype(np.int64)
        bad = np.flatnonzero(~np.isfinite(largest))
        return cls(logits, tuple(best.tolist()), tuple(bad.tolist()))

    def __len__(self) -> int:
        return len(self.best)

    def take(self, rows: list[int]) -> LogitRows:
        """These rows, in this order; a row may come more than once."""
        if rows == list(range(len(self.best))):
            return self
        bad = set(self.bad)
        return LogitRows(
            self.logits[rows],
            tuple(self.best[row] for row in rows),
            tuple(index for index, row in enumerate(rows) if row in bad),
        )

    def between(self, start: int, stop: int) -> LogitRows:
        """The rows from `start` up to `stop`, as a view."""
        bad = tuple(row - start for row in self.bad if start <= row < stop)
        return LogitRows(self.logits[start:stop], self.best[start:stop], bad)
