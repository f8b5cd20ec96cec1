"""A tree of texts and the token ids that they stand for, bounded in bytes.

A text is cut at the starts of special tokens: tokenising both sides by themselves there is what tokenising the whole
is. A node is one such piece under those before it, found by the piece itself: the texts are compared, and a hash only
says where to look. What a model wrote may also end in the middle of a piece, where nothing special follows; such ends
are found by the longest that the rest of a text begins with.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.histories.longest_prefix import longest_prefix

Ids = npt.NDArray[np.int32]

# Of a node, beside its text and its ids: the objects, its places in the tree and in the order of use.
NODE_BYTES = 640


class Piece:
    """A run of text at one place, with its int32 ids. Belongs to its memory.

    Attributes:
        generated: the ids are not what tokenising the text would give, or might not be.
        ends: texts of children that may end in the middle of a piece, sorted.
        cost: bytes.
        alive: still in the tree.
    """

    __slots__ = ("alive", "children", "cost", "ends", "generated", "ids", "key", "parent", "text")

    def __init__(self, key: Hashable, parent: Piece | None, text: str, ids: Ids, generated: bool) -> None:
        self.key = key
        self.parent = parent
        self.text = text
        self.ids = ids
        self.generated = generated
        self.children: dict[str, Piece] = {}
        self.ends: list[str] = []
        # The first of a key holds the key, which a client may make long.
        held = text if parent is not None else repr(key)
        self.cost = NODE_BYTES + sys.getsizeof(held) + ids.nbytes
        self.alive = True


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a text: its first `chars` characters are the `ids`, up to the end of the piece `at`."""

    at: Piece
    chars: int
    ids: list[Ids]


@dataclass(frozen=True, slots=True)
class MemoryBooks:
    """What is remembered now, and what was forgotten for want of room, in bytes."""

    pieces: int
    bytes: int
    forgotten_bytes: int


class TextMemory:
    """Texts and their ids, each under a key of its own (a namespace), for any thread. The least recently used go first.

    Args:
        max_bytes: of texts, ids and their nodes together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._forgotten = 0
        self._roots: dict[Hashable, Piece] = {}
        # Least recently used first. A piece is used before the one that it stands under, so that the first is a leaf.
        self._used: OrderedDict[Piece, None] = OrderedDict()
        self._lock = threading.Lock()

    def books(self) -> MemoryBooks:
        return MemoryBooks(len(self._used), self._bytes, self._forgotten)

    def find(self, key: Hashable, text: str, cuts: Sequence[int], plain_tokens: int = 0) -> Known:
        """The longest known beginning of `text`.

        Args:
            cuts: where pieces begin, rising; without 0.
            plain_tokens: so many leading tokens must be those that tokenising the text gives.
        """
        with self._lock:
            at = self._roots.get(key)
            if at is None:
                at = self._roots[key] = Piece(key, None, "", np.empty(0, np.int32), False)
                self._used[at] = None
                self._bytes += at.cost
            known = _walk(at, text, cuts, plain_tokens)
            self._touch(known.at)
            self._make_room()
            return known

    def peek(self, key: Hashable, text: str, cuts: Sequence[int], plain_tokens: int = 0) -> Known | None:
        """As `find`, and changes nothing; None where nothing is known of the key."""
        with self._lock:
            root = self._roots.get(key)
            return None if root is None else _walk(root, text, cuts, plain_tokens)

    def add(self, under: Piece, pieces: Sequence[tuple[str, Ids]], *, generated: bool, may_end: bool = False) -> Piece:
        """Remember pieces, one under the other; the last of them, or `under` where that was forgotten meanwhile.

        Ids that are known already stay: what was computed behind them is found by them.

        Args:
            may_end: the last piece may be found though the text goes on without a cut.
        """
        with self._lock:
            if not under.alive:
                return under
            at = under
            for rank, (text, ids) in enumerate(pieces):
                child = at.children.get(text)
                if child is None:
                    child = at.children[text] = Piece(at.key, at, text, ids, generated)
                    self._bytes += child.cost
                    self._used[child] = None
                if may_end and rank == len(pieces) - 1:
                    place = bisect_left(at.ends, text)
                    if at.ends[place : place + 1] != [text]:
                        at.ends.insert(place, text)
                at = child
            self._touch(at)
            self._make_room()
            return at

    def _touch(self, piece: Piece | None) -> None:
        while piece is not None:
            self._used.move_to_end(piece)
            piece = piece.parent

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes:
            piece, _ = self._used.popitem(last=False)
            piece.alive = False
            self._bytes -= piece.cost
            self._forgotten += piece.cost
            if piece.parent is None:
                del self._roots[piece.key]
                continue
            del piece.parent.children[piece.text]
            ends = piece.parent.ends
            place = bisect_left(ends, piece.text)
            if place < len(ends) and ends[place] == piece.text:
                del ends[place]


def _walk(at: Piece, text: str, cuts: Sequence[int], plain_tokens: int) -> Known:
    """Down from a root as far as the text is known."""
    found: list[Ids] = []
    position, tokens, next_cut = 0, 0, 0
    while True:
        while next_cut < len(cuts) and cuts[next_cut] <= position:
            next_cut += 1
        child = _child(at, text, position, cuts[next_cut] if next_cut < len(cuts) else None)
        if child is None or (child.generated and tokens < plain_tokens):
            return Known(at, position, found)
        at, position, tokens = child, position + len(child.text), tokens + len(child.ids)
        found.append(child.ids)


def _child(at: Piece, text: str, position: int, cut: int | None) -> Piece | None:
    """The child that the text goes on with from `position`; its piece ends at `cut`, or with the text."""
    if position == len(text) or not at.children:
        return None
    piece = text[position:cut]
    if cut is not None and piece in at.children:
        return at.children[piece]
    end = longest_prefix(at.ends, piece) if at.ends else None
    return None if end is None else at.children[end]
