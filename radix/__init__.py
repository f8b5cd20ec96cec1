"""The prefix store: a radix tree over token sequences and ref-counted KV blocks. Python and NumPy only."""

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
