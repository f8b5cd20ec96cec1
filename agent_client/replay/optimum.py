"""What a cache of endless size would have hit, for the token streams that were really sent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from ..prefixes import common_prefix

_TOKEN_BYTES = 4


@dataclass(frozen=True)
class Stream:
    """One call's tokens as int32 bytes, and when it started and ended (None: it did not finish), on one clock."""

    prompt: bytes
    output: bytes
    started_s: float
    ended_s: float | None


class KnownPrefixes:
    """A set of token sequences that answers how much of another one's head it holds.

    The sequences are sorted byte strings of fixed width a token. The longest prefix shared with any member is shared
    with one of the two neighbours in that order, so a lookup is a bisection and two comparisons.
    """

    def __init__(self) -> None:
        self._sorted: list[bytes] = []

    def longest(self, tokens: bytes) -> int:
        """Tokens at the head of `tokens` that some member starts with."""
        at = bisect_left(self._sorted, tokens)
        neighbours = self._sorted[max(0, at - 1) : at + 1]
        return max((common_prefix(tokens, other) for other in neighbours), default=0) // _TOKEN_BYTES

    def add(self, tokens: bytes) -> None:
        at = bisect_left(self._sorted, tokens)
        if at < len(self._sorted) and self._sorted[at].startswith(tokens):
            return
        # A member that the new one extends adds nothing any more: a growing history stays one member.
        if at and tokens.startswith(self._sorted[at - 1]):
            self._sorted[at - 1] = tokens
        else:
            self._sorted.insert(at, tokens)


def ideal_cached(streams: Iterable[Stream]) -> list[int]:
    """For each stream, in the order given, the prompt tokens that an infinite cache would have had.

    A prompt is known from the moment its call starts; a finished call's prompt and output too, but for its last
    token, whose KV was never computed. The last prompt token is always computed.
    """
    streams = list(streams)
    starts = [(stream.started_s, 1, i) for i, stream in enumerate(streams)]
    # At equal times an end comes before a start: what a call finds includes what ended just then.
    ends = [(stream.ended_s, 0, i) for i, stream in enumerate(streams) if stream.ended_s is not None]
    known = KnownPrefixes()
    cached = [0] * len(streams)
    for _, is_start, i in sorted(starts + ends):
        prompt = streams[i].prompt
        if is_start:
            cached[i] = max(0, min(known.longest(prompt), len(prompt) // _TOKEN_BYTES - 1))
            known.add(prompt)
        else:
            known.add((prompt + streams[i].output)[:-_TOKEN_BYTES])
    return cached
