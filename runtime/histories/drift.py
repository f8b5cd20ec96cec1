"""What a chat template does to a history that grows, found out by rendering histories of one to three turns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from runtime.errors import TemplateRefused
from runtime.histories.longest_prefix import in_common
from runtime.prompting.chat import ChatRenderer
from runtime.prompting.chat_messages import Message
from runtime.prompting.chat_places import ChatPlaces
from runtime.services.convert import ChatInput

DROPS_REASONING = "drops_reasoning"
REWRITES_HISTORY = "rewrites_history"
READS_THE_CLOCK = "reads_the_clock"
# Not found at the start: it takes a call that the model wrote.
REWRITES_CALLS = "rewrites_calls"

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "prefix"}'}}
_SYSTEM: Message = {"role": "system", "content": "Answer in a word."}
_RESULT: Message = {"role": "tool", "name": "look_up", "tool_call_id": "call00001", "content": "a beginning"}
_WORDS = "I look it up."
_REASONING = "<think>\nThe third word will do.\n</think>\n\n"


@dataclass(frozen=True)
class TemplateDrift:
    """One way in which a turn does not go on where the turn before ended.

    Attributes:
        kind: one of the constants above.
        detail: what the template does and what it costs, in words that go on from "the chat template".
        message: index of the message where a turn parts from the one before it; None before any.
    """

    kind: str
    detail: str
    message: int | None


def find_drifts(renderer: ChatRenderer) -> tuple[TemplateDrift, ...]:
    """All that the samples show; none without a template."""
    if not renderer.has_template:
        return ()
    rewritten = _parting(renderer, "", tools=False) or _parting(renderer, "", tools=True)
    beside_calls = rewritten or _parting(renderer, _WORDS, tools=True)
    # A template that rewrites every history is not asked what it does to reasoning.
    reasoning = rewritten or _parting(renderer, _REASONING, tools=False)
    if beside_calls is None and reasoning is None:
        reasoning = _parting(renderer, _REASONING, tools=True)
    found = [*dict.fromkeys([rewritten, beside_calls, reasoning]), _clock(renderer)]
    return tuple(drift for drift in found if drift is not None)


def sample_chats(renderer: ChatRenderer) -> list[tuple[str, str]]:
    """Rendered chats of two turns, each with its last reply, for as many kinds as the template takes."""
    samples = []
    for tools in (False, True):
        turns, reply = _turns("", tools=tools, system=renderer.abilities.system_role)[-1]
        try:
            samples.append((renderer.render(turns, [_TOOL] if tools else None), reply))
        except TemplateRefused:
            continue
    return samples


def _turns(begin: str, *, tools: bool, system: bool) -> list[tuple[list[Message], str]]:
    """Histories that grow, each with the reply that the model wrote last in it. `begin`: what replies begin with."""
    first: list[Message] = [_SYSTEM, _user("first")] if system else [_user("first")]
    if not tools:
        second = [*first, _said(f"{begin}Answer one."), _user("second")]
        third = [*second, _said(f"{begin}Answer two."), _user("third")]
        return [(first, ""), (second, f"{begin}Answer one."), (third, f"{begin}Answer two.")]
    calling: Message = {"role": "assistant", "content": begin, "tool_calls": [_CALL]}
    second = [*first, calling, _RESULT]
    third = [*second, _said(f"{begin}Answer one."), _user("second")]
    # How the model writes a call is the template's affair: what it writes must stay, and the words before it.
    return [(first, ""), (second, begin.strip()), (third, f"{begin}Answer one.")]


def _parting(renderer: ChatRenderer, begin: str, *, tools: bool) -> TemplateDrift | None:
    """The first turn that does not begin with the one before it and its reply."""
    offered = [_TOOL] if tools else None
    before: str | None = None
    for messages, reply in _turns(begin, tools=tools, system=renderer.abilities.system_role):
        try:
            text = renderer.render(messages, offered)
        except TemplateRefused:
            # It takes no system message, no tools, or no results: nothing that could drift.
            return None
        expected = None if before is None else before + reply
        if expected is not None and not text.startswith(expected):
            at = in_common(text, expected)
            chat = ChatInput(messages, offered or [])
            place = ChatPlaces(chat, lambda others: renderer.render(others, offered), text).at(at)
            return _drift(begin, None if place is None else place.message, tools=tools, whole=at < len(before or ""))
        before = text
    return None


def _drift(begin: str, message: int | None, *, tools: bool, whole: bool) -> TemplateDrift:
    cost = "everything from there on" if whole else "that reply and what follows it"
    if begin == _REASONING:
        detail = f"leaves the reasoning of earlier replies out: each later turn computes {cost} again"
        return TemplateDrift(DROPS_REASONING, detail, message)
    if begin:
        detail = f"leaves out what a reply says beside its calls: each later turn computes {cost} again"
        return TemplateDrift(REWRITES_HISTORY, detail, message)
    place = "before its messages" if message is None else f"at message {message} of a short chat"
    kind = "a history with tools" if tools else "a history"
    detail = f"writes {kind} otherwise once it goes on, first {place}: each turn computes {cost} again"
    return TemplateDrift(REWRITES_HISTORY, detail, message)


def _clock(renderer: ChatRenderer) -> TemplateDrift | None:
    """Whether prompts change by themselves."""
    messages, _ = _turns("", tools=False, system=renderer.abilities.system_role)[0]
    for offered in (None, [_TOOL]):
        with suppress(TemplateRefused):
            if len(renderer.render_timeless(messages, offered)) > 1:
                detail = "writes the date into prompts: whenever it changes, what is cached misses from there on"
                return TemplateDrift(READS_THE_CLOCK, detail, None)
    return None


def _user(text: str) -> Message:
    return {"role": "user", "content": f"The {text} question."}


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}
