"""Token arrays: checked once at the door, compared in C."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from radix.errors import InvalidTokens

Ints: TypeAlias = NDArray[np.int32]

_PROBE = 512


def as_tokens(tokens: ArrayLike) -> Ints:
    """Return `tokens` as int32[n]; no copy is made of an int32 array.

    Raises:
        InvalidTokens: not one-dimensional, not integers, or an id outside 0 .. 2**31 - 1.
    """
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise InvalidTokens(f"tokens has {array.ndim} dimensions: it must be one-dimensional")
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidTokens(f"tokens has dtype {array.dtype}: it must hold integers")
    low = int(array.min())
    if low < 0:
        raise InvalidTokens(f"tokens holds {low}: token ids start at 0")
    if array.dtype != np.int32:
        high = int(array.max())
        if high > 2**31 - 1:
            raise InvalidTokens(f"tokens holds {high}: token ids end at {2**31 - 1}")
    return np.ascontiguousarray(array, dtype=np.int32)


def common_prefix(a: Ints, b: Ints) -> int:
    """Return how many leading elements `a` and `b` share.

    A short probe comes first, because most comparisons of siblings part early and most long ones never do.
    """
    n = min(len(a), len(b))
    done = 0
    step = _PROBE
    while done < n:
        end = min(n, done + step)
        differs = a[done:end] != b[done:end]
        first = int(differs.argmax())
        if differs[first]:
            return done + first
        done = end
        step = n
    return n
