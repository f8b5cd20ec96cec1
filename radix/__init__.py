"""The prefix store: a radix tree over token sequences and ref-counted KV blocks. Python and NumPy only."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radix.block_events import BlockEvent, BlockRemoved, BlockStored, block_hash
    from radix.errors import (
        InvalidArgument,
        InvalidTokens,
        LeaseNotFound,
        LeaseRefused,
        OutOfBlocks,
        RadixError,
        SequenceClosed,
    )
    from radix.info import Copy, NodeInfo, StoreStats
    from radix.leases import Lease
    from radix.namespace import Namespace
    from radix.sequence import Sequence
    from radix.store import PrefixStore
    from radix.tokens import common_prefix
    from radix.verdict import Cause, Promotion, Span, Verdict

__all__ = [
    "BlockEvent",
    "BlockRemoved",
    "BlockStored",
    "Cause",
    "Copy",
    "InvalidArgument",
    "InvalidTokens",
    "Lease",
    "LeaseNotFound",
    "LeaseRefused",
    "Namespace",
    "NodeInfo",
    "OutOfBlocks",
    "PrefixStore",
    "Promotion",
    "RadixError",
    "Sequence",
    "SequenceClosed",
    "Span",
    "StoreStats",
    "Verdict",
    "block_hash",
    "common_prefix",
]

_HOMES = {
    "block_events": ("BlockEvent", "BlockRemoved", "BlockStored", "block_hash"),
    "errors": (
        "InvalidArgument",
        "InvalidTokens",
        "LeaseNotFound",
        "LeaseRefused",
        "OutOfBlocks",
        "RadixError",
        "SequenceClosed",
    ),
    "info": ("Copy", "NodeInfo", "StoreStats"),
    "leases": ("Lease",),
    "namespace": ("Namespace",),
    "sequence": ("Sequence",),
    "store": ("PrefixStore",),
    "tokens": ("common_prefix",),
    "verdict": ("Cause", "Promotion", "Span", "Verdict"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `radix plan` and `radix inspect` run where NumPy is not installed.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"radix.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
