"""What the prefix store refuses, by name."""

from __future__ import annotations


class RadixError(Exception):
    """Base of the store's errors."""


class InvalidArgument(RadixError, ValueError):
    """An argument lies outside its limits; the message names it, its value and the limit."""


class InvalidTokens(InvalidArgument):
    """Token ids must be a one-dimensional array of integers from 0 to 2**31 - 1."""


class SequenceClosed(RadixError):
    """The sequence was closed before."""


class OutOfBlocks(RadixError):
    """The pool cannot give that many blocks, whatever is evicted; or not before copies have ended.

    Attributes:
        leaving: blocks that come free once they are copied out.
    """

    def __init__(self, needed: int, available: int, total: int, leaving: int = 0) -> None:
        super().__init__(f"{needed} blocks needed, {available} of {total} can be had: open sequences hold the rest")
        self.needed = needed
        self.available = available
        self.total = total
        self.leaving = leaving


class LeaseNotFound(RadixError):
    """No lease goes by that id, or it has ended."""


class LeaseRefused(RadixError):
    """The leased share of the pool would pass its cap."""

    def __init__(self, wanted_tokens: int, leased_tokens: int, cap_tokens: int) -> None:
        super().__init__(
            f"{wanted_tokens} more tokens cannot be leased: {leased_tokens} are, "
            f"and the cap is {cap_tokens} (leasable_share)"
        )
        self.wanted_tokens = wanted_tokens
        self.leased_tokens = leased_tokens
        self.cap_tokens = cap_tokens
