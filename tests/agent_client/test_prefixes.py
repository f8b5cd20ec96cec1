"""The shared beginning of two sequences, against a look at each item."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.prefixes import common_prefix

FORMS: dict[str, Callable[[list[int]], Sequence[Any]]] = {
    "bytes": bytes,
    "text": lambda items: "".join(map(chr, items)),
    "list": lambda items: items,
    "ids": lambda items: memoryview(array("i", items)),
}


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None)
@given(
    shared=st.lists(st.integers(0, 2), max_size=40), one=st.lists(st.integers(0, 2)), other=st.lists(st.integers(0, 2))
)
def test_it_ends_at_the_first_difference(form: str, shared: list[int], one: list[int], other: list[int]) -> None:
    one, other = shared + one, shared + other
    pairs = enumerate(zip(one, other, strict=False))
    expected = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    assert common_prefix(FORMS[form](one), FORMS[form](other)) == expected
