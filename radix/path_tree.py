"""The infinite cache: which prefixes of a path were ever seen, with nothing else on the books.

The simulator prints a store's hit rate beside this one's. It shares no code with the store on purpose, so that a store
that loses or invents a prefix shows as a difference between the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class _Run:
    __slots__ = ("children", "ids")

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self.ids = ids
        self.children: dict[int, _Run] = {}


class PathTree:
    """A radix tree over int32 paths that never forgets."""

    def __init__(self) -> None:
        self._root = _Run(np.empty(0, dtype=np.int32))
        self.size = 0

    def add(self, path: NDArray[np.int32]) -> int:
        """Remember `path`, int32[n], and return how many of its leading elements were known before.

        The array is kept, not copied. `size` is the number of distinct prefixes known.
        """
        run, done = self._root, 0
        while done < len(path):
            child = run.children.get(int(path[done]))
            if child is None:
                run.children[int(path[done])] = _Run(path[done:])
                break
            shared = _shared(child.ids, path[done:])
            if shared < len(child.ids):
                rest = _Run(child.ids[shared:])
                rest.children = child.children
                child.ids, child.children = child.ids[:shared], {int(rest.ids[0]): rest}
            run, done = child, done + shared
        self.size += len(path) - done
        return done


def _shared(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
