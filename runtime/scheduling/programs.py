"""Programs: what calls belong to, when an agent makes many of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

MAX_PROGRAMS = 8192


@dataclass(slots=True)
class Program:
    """What is known of one.

    Attributes:
        began: ticket of its first call.
        attained: tokens, prompt and output, computed for it so far.
    """

    began: int
    attained: int = 0


class Programs:
    """Programs by name; the one that called least recently is forgotten beyond the bound, and begins anew."""

    def __init__(self, limit: int = MAX_PROGRAMS) -> None:
        self._limit = limit
        # Least recently called first.
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    def called(self, name: Hashable, ticket: int) -> Program:
        """A call of a program arrives."""
        program = self._programs.pop(name, None) or Program(ticket)
        self._programs[name] = program
        if len(self._programs) > self._limit:
            self._programs.popitem(last=False)
        return program
