"""The longest of many texts that a text begins with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def longest_prefix(texts: Sequence[str], text: str) -> str | None:
    """The longest of the sorted `texts` that `text` begins with; None where it begins with none.

    Whatever sorts between a prefix of a text and the text begins with that prefix, too: if the last of `texts` that
    does not sort behind `text` is no prefix of it, every prefix is one of what the two have in common.
    """
    last = bisect_right(texts, text)
    while last:
        candidate = texts[last - 1]
        if text.startswith(candidate):
            return candidate
        text = text[: in_common(candidate, text)]
        last = bisect_right(texts, text, hi=last - 1)
    return None


def in_common(one: str, other: str) -> int:
    """Characters that both begin with. By halves: comparing slices costs a tenth of looking at each character."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
