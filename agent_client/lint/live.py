"""The rules that need a model: what its template and its tokenizer do to a history."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from ..client import RadixClient
from ..prefixes import common_prefix
from ..prompts import Chat
from ..traces import Call, Session, Trace
from .findings import Finding, content_of, quoted
from .rewrites import THINKING

_TEMPLATE_FIX = "use a session of the runtime, which appends token ids and renders nothing twice; or another template"


@dataclass(frozen=True)
class _Sent:
    """A call as the model reads it."""

    ids: array[int]
    text: str


def lint_live(trace: Trace, client: RadixClient) -> list[Finding]:
    """What the served model's template and tokenizer break; each rule is named once a session.

    Raises RadixloopError where the runtime does not take a prompt.
    """
    return [finding for session in trace.sessions for finding in _in_session(session, client)]


def _in_session(session: Session, client: RadixClient) -> Iterator[Finding]:
    reported: set[str] = set()
    before: tuple[Call, _Sent] | None = None
    for number, call in enumerate(session.calls, 1):
        if isinstance(call.prompt, str):
            continue
        told = client.tokenize(Chat(call.prompt, session.tools_of(call)), plain=True)
        now = _Sent(told.token_ids, told.rendered or "")
        found = [_lost_reasoning(session.id, number, call, now)]
        if before is not None:
            found.append(_between(session.id, number, before, (call, now), client))
        before = call, now
        for finding in found:
            if finding is not None and finding.rule not in reported:
                reported.add(finding.rule)
                yield finding


def _lost_reasoning(session: str, number: int, call: Call, now: _Sent) -> Finding | None:
    for index, message in enumerate(() if isinstance(call.prompt, str) else call.prompt):
        if message["role"] != "assistant":
            continue
        thought = THINKING.search(content_of(message))
        if thought is not None and thought.group(1).strip() and thought.group(1).strip() not in now.text:
            what = f"the model's template leaves the reasoning of this reply out, {quoted(thought.group(1).strip())}"
            why = "the reply was computed with its reasoning, and without it all of it has to be computed again"
            return Finding("template-drops-reasoning", session, number, index, what, why, _TEMPLATE_FIX)
    return None


def _between(
    session: str, number: int, before: tuple[Call, _Sent], after: tuple[Call, _Sent], client: RadixClient
) -> Finding | None:
    """Whether what the call before left in the cache, prompt and reply, is a prefix of this call's tokens."""
    (old, was), (new, now) = before, after
    if (
        old.reply is None
        or isinstance(old.prompt, str)
        or tuple(new.prompt[: len(old.prompt) + 1]) != (*old.prompt, old.reply)
    ):
        return None
    at = len(old.prompt)
    if now.ids[: len(was.ids)] != was.ids:
        same = common_prefix(was.text, now.text)
        what = (
            f"the model's template writes the earlier messages otherwise once there are more: "
            f"{quoted(now.text[same:])} in place of {quoted(was.text[same:])}"
        )
        why = f"everything behind character {same} of {len(was.text)} is computed again in every call"
        return Finding("template-rewrites", session, number, None, what, why, _TEMPLATE_FIX)
    reply = content_of(old.reply)
    if not reply or THINKING.search(reply):
        return None
    ids = client.tokenize(reply, add_special_tokens=False, plain=True).token_ids
    sent = now.ids[len(was.ids) : len(was.ids) + len(ids)]
    if sent == ids:
        return None
    same = common_prefix(sent, ids)
    reads, wrote = (client.detokenize(side[same : same + 8]) if side[same:] else "" for side in (sent, ids))
    what = f"in the history the reply's tokens differ, from number {same} on: {quoted(reads)} for {quoted(wrote)}"
    why = f"{len(ids) - same} of the reply's {len(ids)} tokens are computed again though they are cached"
    fix = "use a session of the runtime, or append the reply's token ids instead of its text"
    return Finding("retokenised-reply", session, number, at, what, why, fix)
