"""When the tokens behind a place in the tree were evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from radix.namespace import Namespace
from radix.node import Node
from radix.observers import TreeObserver

_CUTS_A_PLACE = 512
_NAMESPACES = 4096


@dataclass(frozen=True, slots=True)
class Cut:
    """An eviction: when, on the store's clock, and whether a lease had kept the tokens until it ended."""

    at: float
    lease_lapsed: bool


_Cuts: TypeAlias = "OrderedDict[tuple[int, int], Cut]"


class CutLog(TreeObserver):
    """Remembers, at the place that stays, each first token that was cut off behind it.

    Bounded: a place keeps its last few hundred cuts; places are nodes of the tree, and the roots of the namespaces
    that lost something last.
    """

    def __init__(self, clock: Callable[[], float], namespace_of: Callable[[Node], Namespace]) -> None:
        self._clock = clock
        self._namespace_of = namespace_of
        self._at_nodes: dict[Node, _Cuts] = {}
        self._at_roots: OrderedDict[Namespace, _Cuts] = OrderedDict()

    def find(self, place: Node | None, namespace: Namespace, pos: int, token: int) -> Cut | None:
        """Return the last eviction of `token` at position `pos`, behind `place`; None when it is not known."""
        cuts = self._at_roots.get(namespace) if place is None or place.is_root else self._at_nodes.get(place)
        return cuts.get((pos, token)) if cuts else None

    def trimming(self, node: Node, end: int) -> None:
        mark = next(m for m in node.marks if m.end > end)
        cuts = self._cuts_behind(node, end)
        key = end, node.tokens[end - node.start]
        cuts[key] = Cut(self._clock(), mark.lease_lapsed)
        cuts.move_to_end(key)
        _forget_oldest(cuts)

    def _cuts_behind(self, node: Node, end: int) -> _Cuts:
        place = node if end > node.start else node.parent
        assert place is not None
        if not place.is_root:
            return self._at_nodes.setdefault(place, OrderedDict())
        namespace = self._namespace_of(place)
        cuts = self._at_roots.setdefault(namespace, OrderedDict())
        self._at_roots.move_to_end(namespace)
        if len(self._at_roots) > _NAMESPACES:
            self._at_roots.popitem(last=False)
        return cuts

    def split(self, node: Node, child: Node) -> None:
        cuts = self._at_nodes.pop(node, None)
        for key, cut in (cuts or {}).items():
            place = child if key[0] > child.start else node
            self._at_nodes.setdefault(place, OrderedDict())[key] = cut

    def merged(self, node: Node, child: Node) -> None:
        cuts = self._at_nodes.pop(child, None)
        if cuts:
            kept = self._at_nodes.setdefault(node, OrderedDict())
            kept.update(cuts)
            _forget_oldest(kept)

    def removed(self, node: Node) -> None:
        self._at_nodes.pop(node, None)


def _forget_oldest(cuts: _Cuts) -> None:
    while len(cuts) > _CUTS_A_PLACE:
        cuts.popitem(last=False)
