"""The prefix store: a radix tree over token sequences and ref-counted KV blocks. Python and NumPy only."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radix.errors import InvalidArgument, InvalidTokens, OutOfBlocks, RadixError, SequenceClosed
    from radix.info import Copy, NodeInfo, StoreStats
    from radix.namespace import Namespace
    from radix.sequence import Sequence
    from radix.store import PrefixStore
    from radix.tokens import common_prefix

__all__ = [
    "Copy",
    "InvalidArgument",
    "InvalidTokens",
    "Namespace",
    "NodeInfo",
    "OutOfBlocks",
    "PrefixStore",
    "RadixError",
    "Sequence",
    "SequenceClosed",
    "StoreStats",
    "common_prefix",
]

_HOMES = {
    "errors": ("InvalidArgument", "InvalidTokens", "OutOfBlocks", "RadixError", "SequenceClosed"),
    "info": ("Copy", "NodeInfo", "StoreStats"),
    "namespace": ("Namespace",),
    "sequence": ("Sequence",),
    "store": ("PrefixStore",),
    "tokens": ("common_prefix",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `radix plan` and `radix inspect` run where NumPy is not installed.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"radix.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
