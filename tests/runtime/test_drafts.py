"""Prompt lookup against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafting.drafts import LONGEST_MATCH, DraftSource, look_up


def by_brute_force(text: list[int], n: int, shortest: int) -> tuple[list[int], int] | None:
    best = None
    for end in range(1, len(text)):
        matched = 0
        while matched < min(end, LONGEST_MATCH) and text[end - 1 - matched] == text[-1 - matched]:
            matched += 1
        if matched >= shortest and (best is None or matched >= best[1]):
            best = (end, matched)
    if best is None:
        return None
    copy = list(text)
    for i in range(n):
        copy.append(copy[best[0] + i])
    return copy[len(text) :], best[1]


@settings(deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    n=st.integers(1, 20),
    shortest=st.integers(1, 4),
)
def test_it_is_what_followed_the_longest_latest_repeat(text: list[int], n: int, shortest: int) -> None:
    draft = look_up(np.array(text, dtype=np.int32), n, shortest)
    expected = by_brute_force(text, n, shortest) if len(text) > shortest else None
    if expected is None:
        assert draft is None
    else:
        assert draft is not None
        assert (draft.tokens.tolist(), draft.matched) == expected
        assert draft.source is DraftSource.LOOKUP
        assert draft.tokens.dtype == np.int32


def test_a_loop_goes_on() -> None:
    draft = look_up(np.array([9, 1, 2, 3, 1, 2, 3], dtype=np.int32), 7)
    assert draft is not None
    assert draft.tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert draft.matched == 3


@pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3, 4], [5, 1, 6, 1]])
def test_without_a_repeat_there_is_no_draft(text: list[int]) -> None:
    assert look_up(np.array(text, dtype=np.int32), 4) is None


def test_a_draft_does_not_change_with_the_text() -> None:
    text = np.array([1, 2, 3, 4, 1, 2], dtype=np.int32)
    draft = look_up(text, 2)
    text[:] = 0
    assert draft is not None
    assert draft.tokens.tolist() == [3, 4]
