"""Which tokens may come next, as an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.grammar.interface import Matcher

Mask = NDArray[np.bool_]


class MaskBuffer:
    """Room for one mask of a vocabulary. For one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._words = np.zeros(-(-vocab_size // 32), dtype=np.int32)

    def fill(self, matcher: Matcher) -> Mask:
        """bool [vocab], an array of its own: True for the tokens that may come next."""
        matcher.fill(self._words)
        flags: NDArray[Any] = np.unpackbits(self._words.view(np.uint8), count=self._vocab_size, bitorder="little")
        return flags.view(np.bool_)
