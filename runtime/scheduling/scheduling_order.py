"""Scheduling orders: who computes first among the calls whose prompt is not computed yet.

An order is one function of a call's standing; what sorts first goes first, ties go to whoever came first. Whatever the
order, the longest waiting has its turn every so often (`run_queue.py`). To add an order, write the function and name it
in ORDERS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Standing(Protocol):
    """What an order may look at. Properties are worked out when they are read."""

    @property
    def priority(self) -> int:
        """Of the request."""

    @property
    def cached(self) -> int:
        """Leading tokens of the call that are cached now."""

    @property
    def attained(self) -> int:
        """Tokens, prompt and output, that were computed for the call's program so far."""

    @property
    def began(self) -> int:
        """When the call's program came; counts up."""


# Numbers, of which the first that differs decides.
Key: TypeAlias = tuple[int, ...]
Order: TypeAlias = Callable[[Standing], Key]

# A turn of a long agent's session, more or less.
_FIRST_LEVEL_TOKENS = 8192


def fcfs(call: Standing) -> Key:
    """First come, first served."""
    return ()


def lpm(call: Standing) -> Key:
    """Longest cached prefix first, after SGLang (Zheng et al. 2024): uses what is cached before it is evicted."""
    return (-call.cached,)


def priority(call: Standing) -> Key:
    """Highest priority of the request first."""
    return (-call.priority,)


def program(call: Standing) -> Key:
    """Least attained service first, by program and not by call, after Autellix (Luo et al. 2025).

    Levels double, as in a multi-level feedback queue, so that a short loop passes a long one without knowing its
    length. On one level the program that came first goes first: taking turns, both would end late.
    """
    return (call.attained // _FIRST_LEVEL_TOKENS).bit_length(), call.began


DEFAULT_PASSES = 3
DEFAULT_HOLD_BACK_S = 120.0
DEFAULT_ORDER = "fcfs"
ORDERS: dict[str, Order] = {"fcfs": fcfs, "lpm": lpm, "priority": priority, "program": program}
