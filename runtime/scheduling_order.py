"""Scheduling orders: who computes first among the calls whose prompt is not computed yet.

An order is one function of a call's standing; what sorts first goes first, ties go to whoever came first. Whatever the
order, a call that has waited for the queue's patience goes before everything that came after it (`runtime.run_queue`).
To add an order, write the function and name it in ORDERS.
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


Order: TypeAlias = Callable[[Standing], int]

# Programs whose service differs by less than a factor of two are equals, and served as they come: exactly ranked, two
# long programs would take turns and both end late.
_FIRST_LEVEL_TOKENS = 1024


def fcfs(call: Standing) -> int:
    """First come, first served."""
    return 0


def lpm(call: Standing) -> int:
    """Longest cached prefix first, after SGLang (Zheng et al. 2024): uses what is cached before it is evicted."""
    return -call.cached


def priority(call: Standing) -> int:
    """Highest priority of the request first."""
    return -call.priority


def program(call: Standing) -> int:
    """Least attained service first, by program and not by call, after Autellix (Luo et al. 2025).

    Levels double, as in a multi-level feedback queue, so a short loop passes a long one without knowing its length.
    """
    return (call.attained // _FIRST_LEVEL_TOKENS).bit_length()


DEFAULT_PATIENCE_S = 30.0
DEFAULT_ORDER = "fcfs"
ORDERS: dict[str, Order] = {"fcfs": fcfs, "lpm": lpm, "priority": priority, "program": program}
