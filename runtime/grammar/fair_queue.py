"""Whose grammar is compiled next: callers take turns, so that none waits for all that another asked for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable


class QueueIsFull(Exception):
    """As much waits as may, and no caller has more waiting than whoever asks."""


class FairQueue:
    """Round robin over callers, each one's own in the order of their coming. Not for several threads at once.

    Where the queue is full, the newest piece of whoever has most waiting gives way to a caller with less (longest queue
    drop; Suter and others, 1998): a caller alone has all the room, and one that fills it keeps nobody out.

    Args:
        limit: of pieces that wait or run.
        each: how many pieces of one caller run at a time.
    """

    def __init__(self, limit: int, each: int) -> None:
        self.limit = limit
        self._each = each
        # The caller whose turn is next first. A piece that several callers want waits once for each of them.
        self._waiting: OrderedDict[Hashable, OrderedDict[str, None]] = OrderedDict()
        self._running: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Pieces that wait or run."""
        return sum(map(len, self._waiting.values())) + self._running.total()

    def put(self, caller: Hashable, piece: str) -> str | None:
        """Let a piece wait for the caller's turn; the piece that gave way and waits for nobody any more, if any.

        Raises QueueIsFull.
        """
        own = self._waiting.get(caller, ())
        if piece in own:
            return None
        if len(self) < self.limit:
            self._add(caller, piece)
            return None
        longest, theirs = max(self._waiting.items(), key=lambda held: len(held[1]), default=(None, {}))
        # One for one would only change whose turn it is to be refused.
        if len(theirs) <= len(own) + 1:
            raise QueueIsFull
        newest = next(reversed(theirs))
        self._remove(longest, newest)
        self._add(caller, piece)
        return None if any(newest in pieces for pieces in self._waiting.values()) else newest

    def take(self) -> tuple[Hashable, str] | None:
        """The next piece and whose turn it was, until `done`; None where nobody who waits may have more running."""
        for caller, pieces in self._waiting.items():
            if self._running[caller] < self._each:
                piece = next(iter(pieces))
                self._waiting.move_to_end(caller)
                self.discard(piece)
                self._running[caller] += 1
                return caller, piece
        return None

    def done(self, caller: Hashable) -> None:
        """A piece that was taken has ended."""
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]

    def discard(self, piece: str) -> None:
        """Nobody waits for a piece any more."""
        for caller in [caller for caller, pieces in self._waiting.items() if piece in pieces]:
            self._remove(caller, piece)

    def _add(self, caller: Hashable, piece: str) -> None:
        self._waiting.setdefault(caller, OrderedDict())[piece] = None

    def _remove(self, caller: Hashable, piece: str) -> None:
        pieces = self._waiting[caller]
        del pieces[piece]
        if not pieces:
            del self._waiting[caller]
