"""Drafts: guesses of how a sequence goes on, which one forward pass verifies.

Agents repeat what their tools told them, and branches, retries and replays of a loop write what an earlier one wrote.
So the guess is a piece of text that exists: what followed the last tokens where they stood before (prompt lookup,
Saxena 2023), or what the radix tree holds below the sequence's own place in it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

# The longest repeat that is told from a longer one.
LONGEST_MATCH = 8


class DraftSource(Enum):
    """Where a draft was found."""

    LOOKUP = "lookup"
    TREE = "tree"


CHOICES = {
    "off": frozenset[DraftSource](),
    "prompt": frozenset({DraftSource.LOOKUP}),
    "tree": frozenset({DraftSource.TREE}),
    "auto": frozenset(DraftSource),
}


@dataclass(frozen=True)
class DraftSettings:
    """What is drafted.

    Attributes:
        sources: where drafts are looked for.
        longest: tokens of one draft at most.
        adaptive: draft only as much as pays; else as much as there is room for.
    """

    sources: frozenset[DraftSource]
    longest: int = 16
    adaptive: bool = True

    @classmethod
    def named(cls, name: str, longest: int) -> DraftSettings | None:
        """Settings by the name of a choice in `CHOICES`; None for "off"."""
        sources = CHOICES[name]
        return cls(sources, longest) if sources else None


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next.

    Attributes:
        tokens: int32[k], k >= 1.
        matched: how many of the last tokens stand before them where they were found; 0 where that is the whole
            sequence.
        opening: whether a reply would begin with them.
    """

    tokens: Ints
    source: DraftSource
    matched: int
    opening: bool = False

    @property
    def kind(self) -> Hashable:
        """Drafts of one kind hold about equally often."""
        return self.source, self.matched, self.opening

    def cut(self, length: int) -> Draft | None:
        """The first `length` tokens of it; None where that is nothing."""
        return replace(self, tokens=self.tokens[:length]) if length > 0 else None


def look_up(text: Ints, n: int, shortest: int = 2) -> Draft | None:
    """Draft what followed the last tokens of `text` where they stood before.

    Of all earlier places, the one that most of the last tokens agree with counts (at most `LONGEST_MATCH` of them), and
    of equals the latest. A copy that reaches the end of the text goes on with itself: a loop stays one.

    No index is kept: one comparison over the text costs less than bringing an index of its n-grams up to date would
    over the life of a request, and needs no memory.

    Args:
        text: int32[t], prompt and output so far.
        n: length of the draft.
        shortest: fewest last tokens that must agree.

    Returns:
        A draft of exactly `n` tokens, or None where nothing agrees.
    """
    length = len(text)
    if n < 1 or length <= shortest:
        return None
    # The last index of each earlier place.
    places = np.flatnonzero(text[:-1] == text[-1])
    matched = 1
    while len(places) and matched < LONGEST_MATCH:
        longer = places[places >= matched]
        longer = longer[text[longer - matched] == text[-1 - matched]]
        if not len(longer):
            break
        places = longer
        matched += 1
    if not len(places) or matched < shortest:
        return None
    found = text[int(places[-1]) + 1 :]
    tokens = found[:n].copy() if len(found) >= n else np.resize(found, n)
    return Draft(tokens, DraftSource.LOOKUP, matched)
