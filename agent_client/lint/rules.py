"""The rules that need nothing but the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..traces import Trace
from .findings import Finding
from .rewrites import rewritten_histories
from .single_calls import calls_one_at_a_time
from .tool_lists import changing_tools
from .volatile import volatile_heads

RULES: tuple[Callable[[Trace], Iterator[Finding]], ...] = (
    volatile_heads,
    changing_tools,
    rewritten_histories,
    calls_one_at_a_time,
)


def lint(trace: Trace) -> list[Finding]:
    """What every rule found, in the trace's order of sessions and calls."""
    place = {session.id: rank for rank, session in enumerate(trace.sessions)}
    found = [finding for rule in RULES for finding in rule(trace)]
    return sorted(found, key=lambda finding: (place[finding.session], finding.call))
