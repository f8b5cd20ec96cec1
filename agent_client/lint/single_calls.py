"""Tool calls made one at a time that could have gone together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..messages import ChatMessage, message_to_proto
from ..traces import Session, Trace
from .findings import Finding, content_of

# Tools by whose names it can be told that they only look.
_READING = ("get", "read", "list", "search", "find", "fetch", "lookup", "look", "view", "show", "query", "grep", "open")
# A shorter value stands in any text by chance.
_TELLING_CHARS = 3


def calls_one_at_a_time(trace: Trace) -> Iterator[Finding]:
    """A finding for each run of calls with one reading tool call each, none of which needed a result of the run."""
    for session in trace.sessions:
        for run in _runs(session):
            first, last = run[0], run[-1]
            names = ", ".join(sorted({name for _, name in run}))
            what = f"calls {first[0]} to {last[0]} each asked for one result of {names}; none needs one of the others'"
            why = f"{len(run)} rounds through the model where one would do, each with the whole history"
            fix = "ask for independent results in one reply, and send them back together"
            yield Finding("one-at-a-time", session.id, first[0], None, what, why, fix)


def _runs(session: Session) -> Iterator[list[tuple[int, str]]]:
    """Runs of at least two calls, as (call number, tool name)."""
    run: list[tuple[int, str]] = []
    results: list[str] = []
    words = _Words()
    for number, call in enumerate(session.calls, 1):
        messages = () if isinstance(call.prompt, str) else call.prompt
        single = None if call.reply is None or not messages else _single(call.reply)
        if run:
            together = single is not None and messages[-1]["role"] == "tool"
            if together and single is not None:
                results.append(content_of(messages[-1]))
                before = messages[: len(messages) - 2 * len(run)]
                known = _Known(words, before)
                together = _needs_none(single[1], results, known, same_tool=single[0] == run[-1][1])
            if not together:
                if len(run) > 1:
                    yield run
                run, results = [], []
        if single is not None:
            run.append((number, single[0]))
    if len(run) > 1:
        yield run


class _Words:
    """What messages say, each read once: calls share their messages as objects."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def of(self, message: ChatMessage) -> str:
        if id(message) not in self._texts:
            calls = message_to_proto(message, "message").tool_calls
            self._texts[id(message)] = "\n".join([content_of(message), *(call.arguments for call in calls)])
        return self._texts[id(message)]


class _Known:
    """What a history says."""

    def __init__(self, words: _Words, messages: Sequence[ChatMessage]) -> None:
        self._words = words
        self._messages = messages

    def __contains__(self, value: str) -> bool:
        return any(value in self._words.of(message) for message in self._messages)


def _single(reply: ChatMessage) -> tuple[str, Any] | None:
    """Name and arguments of the one reading tool call that a reply makes."""
    calls = message_to_proto(reply, "reply").tool_calls
    if len(calls) != 1 or not calls[0].name.lower().lstrip("_").startswith(_READING):
        return None
    try:
        return calls[0].name, json.loads(calls[0].arguments or "{}")
    except ValueError:
        return None


def _needs_none(arguments: Any, results: Sequence[str], known: _Known, *, same_tool: bool) -> bool:
    """Whether each value was known before the run.

    It stands in the history then. Where the tool is the one of the call before, it may also be the model's own idea, as
    long as no result since has brought it.
    """
    for value in _values(arguments):
        if len(value) < _TELLING_CHARS or value in known:
            continue
        if not same_tool or any(value in result for result in results):
            return False
    return True


def _values(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, Mapping):
        for value in arguments.values():
            yield from _values(value)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _values(value)
    elif arguments is not None and not isinstance(arguments, bool):
        yield str(arguments)
