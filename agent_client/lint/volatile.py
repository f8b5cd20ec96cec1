"""Clocks, dates, ids and nonces near the head of a prompt: one that changes costs everything behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..traces import Call, Trace
from .findings import Finding, content_of, quoted

# Whatever changes further back leaves most of a system prompt in place.
HEAD_CHARS = 4000

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_WRITTEN_DATE = rf"(?:{_DAY}, )?{_MONTH} \d{{1,2}},? \d{{4}}|\d{{1,2}} {_MONTH} \d{{4}}|{_DAY}"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm]\b)?"
# In this order: what stands first is taken where several would match.
_KINDS = {
    "uuid": r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b",
    "date and time": rf"\b\d{{4}}-\d{{2}}-\d{{2}}[T ]{_CLOCK}(?:Z|[+-]\d{{2}}:?\d{{2}})?",
    "date": rf"\b(?:\d{{4}}-\d{{2}}-\d{{2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}|{_WRITTEN_DATE})\b",
    "clock": rf"\b{_CLOCK}(?!\d)",
    "Unix time": r"\b1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?\b",
    "nonce": r"\b(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])(?:[0-9a-fA-F]{12,}|[A-Za-z0-9_-]{20,})\b",
}
_VOLATILE = re.compile("|".join(f"(?P<k{i}>{pattern})" for i, pattern in enumerate(_KINDS.values())))
_NAMES = tuple(_KINDS)
# A day lasts long enough for most caches; it is named only where it is seen to change.
_SUSPECT_ALONE = frozenset(_NAMES) - {"date"}

_FIX = (
    "move it behind what stays the same (into the first user message, or a tool result), or leave it out; "
    "a date without a clock changes once a day"
)


def without_volatile(text: str) -> str:
    """The text with its clocks, dates, ids and nonces taken out."""
    return _VOLATILE.sub("", text)


@dataclass
class _Sighting:
    """One place in a head: what stood there first, and how often it was something else."""

    kind: str
    offset: int
    value: str
    session: str
    behind: int
    others: list[tuple[str, int, str]] = field(default_factory=list)
    values: set[str] = field(default_factory=set)
    calls: int = 0


def volatile_heads(trace: Trace) -> Iterator[Finding]:
    """A finding for each place near the head that holds another clock, date, id or nonce in another call."""
    places: dict[tuple[str, str], _Sighting] = {}
    for session in trace.sessions:
        for number, call in enumerate(session.calls, 1):
            _look(places, session.id, number, _head(call))
    roots = sum(session.parent is None for session in trace.sessions)
    for place in places.values():
        if place.others:
            yield _changing(place)
        elif roots == 1 and place.kind in _SUSPECT_ALONE:
            yield _suspect(place)


def _look(places: dict[tuple[str, str], _Sighting], session: str, number: int, head: str) -> None:
    masked: list[str] = []
    end = 0
    for match in _VOLATILE.finditer(head):
        kind = _NAMES[int((match.lastgroup or "k0")[1:])]
        masked += [head[end : match.start()], f"\0{kind}\0"]
        end = match.end()
        key = "".join(masked), kind
        place = places.get(key)
        if place is None:
            place = places[key] = _Sighting(kind, match.start(), match.group(), session, len(head) - match.start())
        place.calls += 1
        place.values.add(match.group())
        if match.group() != place.value:
            place.others.append((session, number, match.group()))
            # From here on nothing could be found anyway.
            return


def _head(call: Call) -> str:
    """The system message that a prompt begins with, or the beginning of a prompt that is text."""
    if isinstance(call.prompt, str):
        return call.prompt[:HEAD_CHARS]
    first = call.prompt[0]
    return content_of(first)[:HEAD_CHARS] if first["role"] in ("system", "developer") else ""


def _changing(place: _Sighting) -> Finding:
    session, number, value = place.others[0]
    where = "an earlier call" if session == place.session else f"session {place.session!r}"
    values = f"{quoted(value)} here, {quoted(place.value)} in {where}"
    spread = f"{len(place.values)} values in {place.calls} calls"
    what = f"a {place.kind} {place.offset} characters into the head: {values} ({spread})"
    why = "the prompt parts from what is cached there, and everything behind it is computed again"
    return Finding("volatile-head", session, number, 0, what, why, _FIX)


def _suspect(place: _Sighting) -> Finding:
    what = f"a {place.kind} {place.offset} characters into the head, {quoted(place.value)}"
    why = "if it differs in the next session, nothing behind it can be shared (one session alone does not tell)"
    return Finding("volatile-head", place.session, 1, 0, what, why, _FIX)
