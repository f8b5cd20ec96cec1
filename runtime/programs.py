"""Programs: what calls belong to, when an agent makes many of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

MAX_PROGRAMS = 8192


class AttainedService:
    """Tokens computed for each program; the longest unused are forgotten beyond the bound, and begin anew."""

    def __init__(self, limit: int = MAX_PROGRAMS) -> None:
        self._limit = limit
        # Least recently charged first.
        self._tokens: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def of(self, program: Hashable) -> int:
        """Tokens, prompt and output, computed so far."""
        return self._tokens.get(program, 0)

    def charge(self, program: Hashable, tokens: int) -> None:
        self._tokens[program] = self._tokens.pop(program, 0) + tokens
        if len(self._tokens) > self._limit:
            self._tokens.popitem(last=False)
