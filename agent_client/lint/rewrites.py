"""Histories that do not extend what was sent before: messages edited or dropped, reasoning that vanishes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..messages import ChatMessage, message_to_proto
from ..prefixes import common_prefix
from ..traces import Session, Trace
from .findings import Finding, content_of, quoted
from .volatile import without_volatile

THINKING = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_REASONING_KEYS = ("reasoning_content", "reasoning")


def rewritten_histories(trace: Trace) -> Iterator[Finding]:
    """A finding for each call that parts from every earlier call of its session."""
    for session in trace.sessions:
        yield from _in_session(session)


def _in_session(session: Session) -> Iterator[Finding]:
    written: dict[int, bytes] = {}
    known: list[list[ChatMessage]] = []
    wires: list[list[bytes]] = []
    hidden = False

    def wire(message: ChatMessage) -> bytes:
        # Calls share their messages as objects in most traces: each is written once.
        if id(message) not in written:
            written[id(message)] = message_to_proto(message, "message").SerializeToString()
        return written[id(message)]

    for number, call in enumerate(session.calls, 1):
        if isinstance(call.prompt, str):
            continue
        now = [wire(message) for message in call.prompt]
        if wires:
            shared, nearest = _nearest(now, wires)
            parted = _parting(session.id, number, known[nearest], call.prompt, shared)
            if parted is not None:
                yield parted
        if call.reply is not None and not hidden and number < len(session.calls):
            hidden = any(isinstance(call.reply.get(key), str) and call.reply[key] for key in _REASONING_KEYS)
            if hidden:
                yield _reasoning(
                    session.id, number + 1, len(call.prompt), "stands beside its content and is not sent back"
                )
        history = [*call.prompt, *([] if call.reply is None else [call.reply])]
        known.append(history)
        wires.append([*now, *(wire(message) for message in history[len(now) :])])


def _nearest(now: Sequence[bytes], earlier: Sequence[Sequence[bytes]]) -> tuple[int, int]:
    """How many leading messages the most alike of the earlier calls shares, and which one that is."""
    best = -1, 0
    for rank in reversed(range(len(earlier))):
        best = max(best, (common_prefix(now, earlier[rank]), rank))
        if best == (len(earlier[rank]), rank):
            # It is extended; what came before it hardly says more.
            break
    return best


def _parting(
    session: str, number: int, before: Sequence[ChatMessage], now: Sequence[ChatMessage], shared: int
) -> Finding | None:
    """What became of message number `shared`; None where the history extends, repeats or rewinds the one before."""
    if shared in (len(before), len(now)):
        return None
    old, new = before[shared], now[shared]
    was, reads = content_of(old), content_of(new)
    if shared == 0 and without_volatile(was) == without_volatile(reads):
        # The rule for heads says so, and better.
        return None
    if THINKING.search(was) and THINKING.sub("", was).strip() == reads.strip():
        return _reasoning(session, number, shared, "was taken out of it in the next call")
    for dropped in range(1, len(before) - shared):
        if message_to_proto(before[shared + dropped], "") == message_to_proto(new, ""):
            what = f"{_messages(dropped)} dropped here that the call before sent, beginning with {quoted(was)}"
            return _rewrite(session, number, shared, what)
    at = common_prefix(was, reads)
    if old["role"] != new["role"] or (shared == 0 and at * 2 < len(was)):
        if shared == 0:
            # Another agent altogether.
            return None
        what = f"a message of role {old['role']} was replaced by one of role {new['role']}, {quoted(reads)}"
        return _rewrite(session, number, shared, what)
    if was == reads:
        return _rewrite(session, number, shared, "the message's tool calls differ from what the call before had there")
    where = f"from character {at} on"
    what = f"the {old['role']} message reads {quoted(reads[at:])} {where}, and read {quoted(was[at:])} before"
    return _rewrite(session, number, shared, what)


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{count} messages were"


def _rewrite(session: str, number: int, message: int, what: str) -> Finding:
    why = f"messages {message} and on are computed again, though the cache holds them as they were sent before"
    fix = (
        "append instead of editing; where a history must shrink, compact it seldom and from the end, and say so "
        "(Sessions.Truncate, or conversation in the request) so that the old branch makes room"
    )
    return Finding("history-rewritten", session, number, message, what, why, fix)


def _reasoning(session: str, number: int, message: int, fate: str) -> Finding:
    what = f"the reply's reasoning {fate}"
    why = "the reply was computed with its reasoning, and without it all of it has to be computed again"
    fix = "send the reasoning back as it was written, use a session of the runtime, or let the model not think aloud"
    return Finding("reasoning-dropped", session, number, message, what, why, fix)
