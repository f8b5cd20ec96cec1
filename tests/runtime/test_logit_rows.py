"""The likeliest token of each row, and which rows are broken, against torch."""

from __future__ import annotations

import math

import pytest
import torch

from runtime.execution.logit_rows import LogitRows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_best_is_torchs(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 333, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = LogitRows.of(logits)
    assert list(rows.best) == logits.float().argmax(dim=-1).tolist()
    assert rows.bad == ()
    assert len(rows) == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_a_finite_maximum_are_bad(dtype: torch.dtype) -> None:
    logits = torch.zeros(6, 50, dtype=dtype)
    logits[1, 7] = math.nan
    logits[2, 3] = math.inf
    logits[3] = -math.inf
    logits[4, :49] = -math.inf
    logits[5, 0], logits[5, 49] = math.inf, math.nan
    assert LogitRows.of(logits).bad == (1, 2, 3, 5)


def test_equals_go_to_the_first() -> None:
    logits = torch.zeros(1, 70)
    logits[0, [20, 60]] = 1.0
    assert LogitRows.of(logits).best == (20,)


def test_rows_are_taken_with_what_is_known_of_them() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(2))
    logits[2, 1] = math.nan
    taken = LogitRows.of(logits).take([3, 2, 0, 0])
    again = LogitRows.of(logits[[3, 2, 0, 0]])
    assert (taken.best, taken.bad) == (again.best, again.bad)
    torch.testing.assert_close(taken.logits, again.logits, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(taken.logits[0], logits[3])


def test_no_rows() -> None:
    none = LogitRows.of(torch.empty(0, 30))
    assert (none.best, none.bad, len(none.take([]))) == ((), (), 0)
