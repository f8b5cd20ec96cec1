"""What happens in a tree, told to whoever keeps books about it: changes for metadata, KV events, times of eviction."""

from __future__ import annotations

from collections.abc import Sequence as Many

from radix.node import Node


class TreeObserver:
    """Does nothing; override what matters. Calls come from the store's thread, in order, and must be quick."""

    def stored(self, node: Node, pos: int) -> None:
        """`node` has new tokens, from position `pos` on."""

    def split(self, node: Node, child: Node) -> None:
        """`node` was cut in two: `child` is new and holds what `node` lost."""

    def merged(self, node: Node, child: Node) -> None:
        """`node` took over the tokens and children of `child`, which is gone."""

    def trimming(self, node: Node, end: int) -> None:
        """`node` is about to lose its tokens from position `end` on."""

    def removed(self, node: Node) -> None:
        """`node` is gone."""

    def changed(self, node: Node) -> None:
        """Recency, readers, children or parent of `node` are other than they were."""


class Observers(TreeObserver):
    """Several observers as one."""

    def __init__(self, observers: Many[TreeObserver]) -> None:
        self._observers = tuple(observers)

    def stored(self, node: Node, pos: int) -> None:
        for observer in self._observers:
            observer.stored(node, pos)

    def split(self, node: Node, child: Node) -> None:
        for observer in self._observers:
            observer.split(node, child)

    def merged(self, node: Node, child: Node) -> None:
        for observer in self._observers:
            observer.merged(node, child)

    def trimming(self, node: Node, end: int) -> None:
        for observer in self._observers:
            observer.trimming(node, end)

    def removed(self, node: Node) -> None:
        for observer in self._observers:
            observer.removed(node)

    def changed(self, node: Node) -> None:
        for observer in self._observers:
            observer.changed(node)


class ChangeLog(TreeObserver):
    """Which nodes are new or different since somebody last looked, and which are gone."""

    def __init__(self) -> None:
        self.touched: dict[int, Node] = {}
        self.gone: list[int] = []

    def changed(self, node: Node) -> None:
        if node.parent is not None:
            self.touched[node.id] = node

    def stored(self, node: Node, pos: int) -> None:
        self.changed(node)

    def split(self, node: Node, child: Node) -> None:
        self.changed(node)
        self.changed(child)

    def merged(self, node: Node, child: Node) -> None:
        self.removed(child)
        self.changed(node)

    def removed(self, node: Node) -> None:
        self.touched.pop(node.id, None)
        self.gone.append(node.id)
