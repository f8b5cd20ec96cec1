"""Remembers what was cached, so that a miss can be explained."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from radix.cuts import CutLog
from radix.history import History, Trail
from radix.namespace import Namespace
from radix.node import Node
from radix.sequence import Sequence
from radix.tokens import Ints
from radix.tree import RadixTree
from radix.verdict import Findings, Verdict, assemble

_HEAD = 16
_NAMESPACES_SEARCHED = 256


class Witness:
    """Follows the open sequences, and answers from the history and the cuts."""

    def __init__(
        self, history_tokens: int, clock: Callable[[], float], namespace_of: Callable[[Node], Namespace]
    ) -> None:
        self.cuts = CutLog(clock, namespace_of)
        self._history = History(history_tokens)
        self._trails: dict[Sequence, Trail] = {}

    def opened(self, seq: Sequence, matched: Ints) -> None:
        self._trails[seq] = self._history.open(matched, seq.namespace)

    def committed(self, seq: Sequence, tokens: Ints) -> None:
        trail = self._trails.get(seq)
        if trail is not None:
            self._history.commit(trail, tokens)

    def forked(self, seq: Sequence, child: Sequence) -> None:
        trail = self._trails.get(seq)
        if trail is not None:
            self._trails[child] = self._history.fork(trail)

    def rewound(self, seq: Sequence) -> None:
        trail = self._trails.get(seq)
        if trail is not None:
            self._history.rewind(trail, seq.length)

    def closed(self, seq: Sequence) -> None:
        trail = self._trails.pop(seq, None)
        if trail is not None:
            self._history.close(trail)

    def flushed(self, namespace: Namespace | None) -> None:
        self._history.flush(namespace)
        for seq in [s for s in self._trails if namespace in (None, s.namespace)]:
            del self._trails[seq]

    def explain(
        self, tree: RadixTree, tokens: Ints, namespace: Namespace, cached: int, in_flight: int, across: bool
    ) -> Verdict:
        stored, beside = self._history.lookup(tokens, namespace, _HEAD)
        cut = None
        if cached < len(tokens):
            found = tree.find(tokens, namespace)
            place, length = found if found is not None else (None, 0)
            if length == cached:
                cut = self.cuts.find(place, namespace, cached, int(tokens[cached]))
        known = max(cached, stored, in_flight)
        elsewhere, other = self._elsewhere(tree, tokens, namespace, known) if across else (0, None)
        return assemble(
            Findings(
                prompt_tokens=len(tokens),
                cached=cached,
                stored=max(stored, cached),
                evicted_at=cut.at if cut is not None else None,
                lease_lapsed=cut is not None and cut.lease_lapsed,
                in_flight=in_flight,
                elsewhere=elsewhere,
                other_namespace=other,
                beside=tuple(beside),
            )
        )

    @staticmethod
    def _elsewhere(tree: RadixTree, tokens: Ints, namespace: Namespace, known: int) -> tuple[int, Namespace | None]:
        """Return how far another namespace holds these tokens, where that is further than `known`."""
        best: tuple[int, Namespace | None] = (known, None)
        for other, root in islice(tree.roots.items(), _NAMESPACES_SEARCHED):
            if other != namespace and int(tokens[0]) in root.children:
                length = tree.match(tokens, other)
                if length > best[0]:
                    best = length, other
        return best if best[1] is not None else (0, None)
