"""A growable int32 array."""

from __future__ import annotations

import numpy as np

from radix.tokens import Ints


class IntBuffer:
    """int32 values with amortised appends; `view` shows them without a copy until the next change."""

    __slots__ = ("_data", "_size")

    def __init__(self, values: Ints) -> None:
        self._data: Ints = values.copy()
        self._size = len(values)

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> Ints:
        return self._data[: self._size]

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    def extend(self, values: Ints) -> None:
        size = self._size + len(values)
        if size > len(self._data):
            # A quarter more than needed: the tree's memory a token stays bounded by 1.25 x 4 bytes.
            grown = np.empty(size + (size >> 2) + 4, dtype=np.int32)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : size] = values
        self._size = size

    def truncate(self, size: int) -> None:
        self._size = size
        if size * 4 < len(self._data):
            self._data = self._data[:size].copy()

    def set(self, index: int, value: int) -> None:
        self._data[index] = value

    def __getitem__(self, index: int) -> int:
        return int(self._data[index] if index >= 0 else self._data[self._size + index])
