"""Whether a prompt parted from what is stored because its chat template writes the same history otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from runtime.errors import TemplateRefused
from runtime.histories.drift import (
    DROPS_REASONING,
    READS_THE_CLOCK,
    REWRITES_CALLS,
    REWRITES_HISTORY,
    TemplateDrift,
)
from runtime.histories.longest_prefix import in_common
from runtime.prompting.chat import ChatRenderer
from runtime.prompting.chat_messages import Message
from runtime.prompting.chat_places import ChatPlaces
from runtime.services.convert import ChatInput

# Of the turns before, the last few: each is one more rendering of the chat.
_TURNS_LOOKED_AT = 4
_REASONING = re.compile(r"</?(think|thinking|thought|reasoning)>")
_SPACES = re.compile(r"\s+")
_HALF = "\ufffd"


class PartedChat:
    """A chat, rendered, and where its text leaves what is stored.

    A cause is told where what is stored is this same history as the template wrote it a turn ago.

    Args:
        at: character at which the first token that differs begins.
        shared: the text of the last tokens before it.
        stored: for each branch, `shared` and the text of the tokens that are stored behind it.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        chat: ChatInput,
        text: str,
        places: ChatPlaces,
        at: int,
        shared: str,
        stored: Sequence[str],
    ) -> None:
        self._renderer = renderer
        self._chat = chat
        self._text = text
        self._places = places
        # Both sides of a cut inside a character decode to U+FFFD.
        cut = len(shared) - len(shared.lstrip(_HALF))
        self._begin = at - len(shared.strip(_HALF))
        self._stored = [branch[cut:].rstrip(_HALF) for branch in stored]

    def cause(self) -> TemplateDrift | None:
        """What the template did; None where nothing shows that it did anything. Raises TemplateRefused."""
        return self._clock() or self._earlier_turn()

    def _clock(self) -> TemplateDrift | None:
        first, *rest = self._renderer.render_timeless(self._chat.messages, self._chat.tools, self._chat.template_kwargs)
        end = len(first)
        if not self._text.startswith(first):
            return None
        for rank, piece in enumerate(rest, 1):
            start = end
            found = self._text.find(piece, start)
            if not piece:
                # The time is the last of the text, or another time follows.
                found = len(self._text) if rank == len(rest) else start
            if found < 0:
                return None
            if any(start <= self._parting(branch, self._text) < found for branch in self._stored):
                detail = "writes the date into prompts, and since it changed everything from there on is computed again"
                return TemplateDrift(READS_THE_CLOCK, detail, self._message_at(start))
            end = found + len(piece)
        return None

    def _earlier_turn(self) -> TemplateDrift | None:
        messages = self._chat.messages
        said = (i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "assistant")
        for index in islice(said, _TURNS_LOOKED_AT):
            with suppress(TemplateRefused):
                before = self._render(messages[:index])
                found = self._rewritten(before, index) or self._calls_rewritten(before, index)
                if found is not None:
                    return found
        return None

    def _rewritten(self, before: str, index: int) -> TemplateDrift | None:
        """Whether the prompt of the turn that message `index` answered, and that reply, are what is stored."""
        expected = before + (self._chat.messages[index].get("content") or "")
        parting = in_common(expected, self._text)
        if parting == min(len(expected), len(self._text)):
            return None
        for branch in self._stored:
            here = expected[self._begin : self._begin + len(branch)]
            # A branch may go on behind the reply, or the reply behind what is known of the branch.
            if self._begin + len(here) > parting and branch.startswith(here):
                message = self._message_at(parting)
                return _drift(self._chat.messages, message, in_reply=parting >= len(before))
        return None

    def _calls_rewritten(self, before: str, index: int) -> TemplateDrift | None:
        """Whether message `index` makes the calls that are stored, in other white space."""
        if not self._chat.messages[index].get("tool_calls") or not self._text.startswith(before):
            return None
        sent = _SPACES.sub("", self._text[self._begin :])
        for branch in self._stored:
            parting = self._parting(branch, self._text)
            if parting >= len(before) and self._message_at(parting) == index and _same_start(sent, branch):
                detail = f"writes the calls of message {index} otherwise than the model did: they are computed again"
                return TemplateDrift(REWRITES_CALLS, detail, index)
        return None

    def _parting(self, branch: str, text: str) -> int:
        """The character of `text` where it leaves a branch."""
        here = text[self._begin : self._begin + len(branch)]
        return self._begin + in_common(branch, here)

    def _message_at(self, offset: int) -> int | None:
        place = self._places.at(offset)
        return None if place is None else place.message

    def _render(self, messages: list[Message]) -> str:
        return self._renderer.render(messages, self._chat.tools, self._chat.template_kwargs)


def _drift(messages: Sequence[Message], message: int | None, *, in_reply: bool) -> TemplateDrift:
    told = None if message is None else messages[message]
    if told is not None and told["role"] == "assistant" and _REASONING.search(told.get("content") or ""):
        detail = f"leaves the reasoning of message {message} out: what follows it is computed again"
        return TemplateDrift(DROPS_REASONING, detail, message)
    what = "the reply" if in_reply else "the history"
    place = "its head" if message is None else f"message {message}"
    detail = f"writes {what} otherwise than a turn ago, first in {place}: what follows is computed again"
    return TemplateDrift(REWRITES_HISTORY, detail, message)


def _same_start(squeezed: str, branch: str) -> bool:
    told = _SPACES.sub("", branch)
    return bool(told) and squeezed.startswith(told)
