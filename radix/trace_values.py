"""Values of a trace's lines: whole numbers and lists of ids, checked."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radix.tokens import Ints

# The largest int32 stays free: the simulator ends a path with it.
LARGEST_ID = 2**31 - 2
NOTHING: Ints = np.empty(0, dtype=np.int32)
_RENUMBERED = 2**30


class BadLine(Exception):
    """What is wrong with a line, without its place."""


class Renumber:
    """Hash ids as int32: small ones stay as they are, others (64-bit hashes) get numbers in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def path(self, ids: Any, name: str) -> Ints:
        """Return int32[n] of a list of n ids. Raises BadLine."""
        array = _integers(ids, name)
        if not len(array):
            return NOTHING
        if array.dtype != object and int(array.min()) >= 0 and int(array.max()) < _RENUMBERED:
            return array.astype(np.int32)
        numbers = self._numbers
        kept_or_new = (
            i if 0 <= i < _RENUMBERED else numbers.setdefault(i, _RENUMBERED + len(numbers)) for i in array.tolist()
        )
        return np.fromiter(kept_or_new, np.int32, len(array))


def token_array(values: Any, name: str) -> Ints:
    """Return int32[n] of a list of n token ids. Raises BadLine."""
    array = _integers(values, name)
    if len(array) and (array.dtype == object or int(array.min()) < 0 or int(array.max()) > LARGEST_ID):
        raise BadLine(f"{name} holds an id outside 0 .. {LARGEST_ID}")
    return array.astype(np.int32)


def token_count(line: dict[str, Any], key: str) -> int:
    """Return a field that counts tokens, at least 1. Raises BadLine."""
    value = line.get(key)
    # By type, because True is an int too.
    if type(value) is not int or value < 1:
        raise BadLine(f"{key} is {show(value)}: it must be a whole number of tokens from 1")
    return value


def seconds(line: dict[str, Any], key: str) -> float | None:
    """Return a field that counts seconds, from 0; None where it is missing. Raises BadLine."""
    value = line.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise BadLine(f"{key} is {show(value)}: it must be a number of seconds from 0")
    return float(value)


def show(value: Any) -> str:
    """Return a value as JSON, cut short, for a message."""
    if value is None:
        return "missing"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _integers(values: Any, name: str) -> NDArray[Any]:
    if not isinstance(values, list):
        raise BadLine(f"{name} is {show(values)}: it must be a list of whole numbers")
    if not values:
        return NOTHING
    # bool is looked for by type, because NumPy would take true for 1.
    if set(map(type, values)) != {int}:
        bad = next(i for i, value in enumerate(values) if type(value) is not int)
        raise BadLine(f"{name}[{bad}] is {show(values[bad])}: it must be a whole number")
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)
