"""Tool lists that change between calls: templates write them before everything else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..messages import tool_to_text
from ..prefixes import common_prefix
from ..traces import Trace
from .findings import Finding, quoted

_WHY = "templates write the tools at the head of the prompt, so nothing behind the first difference is found"


def changing_tools(trace: Trace) -> Iterator[Finding]:
    """A finding for each set of tools that comes in another order, or with other definitions; sessions of a trace and
    calls of a session are compared alike."""
    first: dict[frozenset[str], tuple[str, list[str], list[str]]] = {}
    reported: set[tuple[frozenset[str], str]] = set()
    for session in trace.sessions:
        previous: frozenset[str] | None = None
        for number, call in enumerate(session.calls, 1):
            tools = session.tools_of(call)
            names, texts = _names(tools), [tool_to_text(tool, "tool") for tool in tools]
            key = frozenset(names)
            if previous is not None and key != previous:
                yield _other_tools(session.id, number, previous, key)
            previous = key
            if not names:
                continue
            seen, seen_names, seen_texts = first.setdefault(key, (session.id, names, texts))
            finding = _difference(session.id, number, seen, (seen_names, seen_texts), (names, texts))
            if finding is not None and (key, finding.rule) not in reported:
                reported.add((key, finding.rule))
                yield finding


def _difference(
    session: str, number: int, seen: str, before: tuple[list[str], list[str]], now: tuple[list[str], list[str]]
) -> Finding | None:
    where = "an earlier call" if seen == session else f"session {seen!r}"
    if before[0] != now[0]:
        at = next(i for i, (a, b) in enumerate(zip(before[0], now[0], strict=False)) if a != b)
        what = f"the same tools in another order: number {at + 1} is {now[0][at]!r} here, {before[0][at]!r} in {where}"
        return Finding("tool-order", session, number, None, what, _WHY, "sort the tools by name before every call")
    changed = [i for i, (a, b) in enumerate(zip(before[1], now[1], strict=True)) if a != b]
    if not changed:
        return None
    name, one, other = now[0][changed[0]], before[1][changed[0]], now[1][changed[0]]
    if _sorted(one) == _sorted(other):
        what = f"the definition of {name!r} has its keys in another order than in {where}"
        return Finding("tool-order", session, number, None, what, _WHY, "write tool definitions with sorted keys")
    at = common_prefix(one, other)
    what = f"the definition of {name!r} reads {quoted(other[at:])} where that of {where} reads {quoted(one[at:])}"
    return Finding("tool-changed", session, number, None, what, _WHY, "keep what changes out of tool definitions")


def _other_tools(session: str, number: int, before: frozenset[str], now: frozenset[str]) -> Finding:
    parts = [f"{word} {', '.join(sorted(names))}" for word, names in (("gained", now - before), ("lost", before - now))]
    what = f"the list of tools changed within the session: {'; '.join(part for part in parts if part[-1] != ' ')}"
    fix = "offer all tools from the first call on, and refuse by a tool result what may not be used yet"
    return Finding("tool-changed", session, number, None, what, _WHY, fix)


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    functions = (tool.get("function", tool) for tool in tools)
    return [str(function.get("name")) if isinstance(function, Mapping) else "" for function in functions]


def _sorted(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text
