"""A step's logits, what may be chosen from each row, and the likeliest token of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

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
        best: for each row the id of its largest allowed logit, the first of equals.
        bad: rows that no token is chosen from: they hold NaN, their largest allowed value is infinite, or `errors`
            says why.
        allowed: of the rows that a grammar masks, bool [vocab]: the tokens that may be chosen.
    """

    logits: torch.Tensor
    best: tuple[int, ...]
    bad: tuple[int, ...]
    allowed: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)
    errors: Mapping[int, Exception] = field(default_factory=dict)

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

    def masked(self, allowed: Mapping[int, NDArray[np.bool_]], errors: Mapping[int, Exception]) -> LogitRows:
        """The same logits where only the `allowed` tokens may be chosen, bool [vocab] by row; `errors` are bad rows.

        A row whose likeliest token is allowed keeps it: only the others are looked through again.
        """
        best = list(self.best)
        bad = {*self.bad, *errors}
        search = [row for row, mask in allowed.items() if row not in bad and not mask[best[row]]]
        if search:
            again = LogitRows.of(_masked(self.logits[search].detach().float(), [allowed[row] for row in search]))
            for place, row in enumerate(search):
                best[row] = again.best[place]
            bad |= {search[place] for place in again.bad}
        return LogitRows(self.logits, tuple(best), tuple(sorted(bad)), allowed, errors)

    def error(self, row: int) -> Exception:
        """Why no token is chosen from a bad row."""
        return self.errors.get(row) or BadLogits((row,))

    def __len__(self) -> int:
        return len(self.best)

    def take(self, rows: list[int]) -> LogitRows:
        """These rows, in this order; a row may come more than once."""
        if rows == list(range(len(self.best))):
            return self
        return LogitRows(
            self.logits[rows],
            tuple(self.best[row] for row in rows),
            *self._of(list(enumerate(rows))),
        )

    def between(self, start: int, stop: int) -> LogitRows:
        """The rows from `start` up to `stop`, as a view."""
        places = [(row - start, row) for row in range(start, stop)]
        return LogitRows(self.logits[start:stop], self.best[start:stop], *self._of(places))

    def _of(
        self, places: list[tuple[int, int]]
    ) -> tuple[tuple[int, ...], dict[int, NDArray[np.bool_]], dict[int, Exception]]:
        """Bad rows, masks and errors by their new places, from (place, row) pairs."""
        bad = set(self.bad)
        return (
            tuple(place for place, row in places if row in bad),
            {place: self.allowed[row] for place, row in places if row in self.allowed},
            {place: self.errors[row] for place, row in places if row in self.errors},
        )


def _masked(logits: torch.Tensor, allowed: list[NDArray[np.bool_]]) -> torch.Tensor:
    masks = np.stack(allowed)
    if logits.device.type == "cpu":
        return torch.from_numpy(np.where(masks, logits.numpy(), np.float32(-np.inf)))
    return logits.masked_fill(~torch.from_numpy(masks).to(logits.device), -torch.inf)
