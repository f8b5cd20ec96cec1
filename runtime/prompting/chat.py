"""Chat messages to prompt tokens, through the model's own template."""

from __future__ import annotations

import inspect
import itertools
import secrets
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequest, TemplateRefused
from runtime.histories.continuation import continuation_ids
from runtime.prompting.chat_fallback import TemplateAbilities, adapt, probe_abilities
from runtime.prompting.chat_messages import Message, check_messages, check_template_kwargs, check_tools
from runtime.sampling.detokenizer import special_token_ids
from runtime.tool_calls import SAMPLE_ARGUMENTS, SAMPLE_NAME, ToolFormat, recognise

MAX_CHAT_CHARS = 4_000_000
# How many tokens into a turn the end token of the reply before it is looked for.
_CLOSING_TOKENS = 4


class ChatRenderer:
    """Renders messages and tools as the model was trained to read them.

    What the template cannot express is written as text instead. Tools that it ignores are listed in the system message
    (or in the first user message, where it knows no system role). An assistant's tool calls that it drops become
    `<tool_call>{"name": ..., "arguments": ...}</tool_call>` in the message's text. Tool results keep the role `tool`
    where the template takes it, and otherwise become user messages in `<tool_response>` tags. Content is text, or a
    list of one text part where the template reads nothing else. Which of these a template needs is found out by
    rendering marked samples, once.

    Special tokens that are spelt out in a message's text become those tokens, as in transformers.
    """

    def __init__(self, tokenizer: Any, max_chars: int = MAX_CHAT_CHARS) -> None:
        """`max_chars` bounds the messages and tools of one call, counted as JSON text."""
        self._tokenizer = tokenizer
        self._max_chars = max_chars
        self._abilities: TemplateAbilities | None = None
        self._tool_format: ToolFormat | None = None
        # The same always: transformers keeps compiled templates by their text.
        self._clock_mark = f"time{secrets.token_hex(12)}"
        taken = set(inspect.signature(tokenizer.apply_chat_template).parameters) - {"documents", "kwargs"}
        self._reserved_kwargs = frozenset(taken | {"self", "messages", "conversations"})

    @property
    def has_template(self) -> bool:
        """False for most base models: they take text or token ids only."""
        return bool(self._tokenizer.chat_template)

    @property
    def abilities(self) -> TemplateAbilities:
        """What the template can express by itself. Raises TemplateRefused where there is no template."""
        self._require_template()
        if self._abilities is None:
            self._abilities = probe_abilities(lambda messages, tools: self._apply(messages, tools, {}, False))
        return self._abilities

    @property
    def tool_format(self) -> ToolFormat:
        """How the prompts of this template show the model its own calls. Raises TemplateRefused where there is none."""
        if self._tool_format is None:
            function = {"name": SAMPLE_NAME, "arguments": SAMPLE_ARGUMENTS}
            call = {"id": "call00001", "type": "function", "function": function}
            told: list[Message] = [
                {"role": "user", "content": "question"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            result: Message = {"role": "tool", "name": SAMPLE_NAME, "tool_call_id": "call00001", "content": "answer"}
            shown = ""
            for messages in (told, [*told, result]):
                with suppress(TemplateRefused):
                    shown += self._write(messages, [], {}, False)
            self._tool_format = recognise(shown)
        return self._tool_format

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """The prompt as text, up to where the model's reply begins.

        `messages` are in the shape of OpenAI's API: `role`, `content` (text, None, or a list of text parts),
        `tool_calls`, `tool_call_id`, `name`; a tool call may also be flat (`id`, `name`, `arguments`). `tools` are in
        its shape too. Raises InvalidRequest, naming the field, for what no template could render, and TemplateRefused,
        with the template's own words, for what this one does not take.
        """
        self._require_template()
        checked, chars = check_messages(messages)
        offered = self._check_rest(chars, tools, template_kwargs)
        return self._write(checked, offered, template_kwargs or {}, True)

    def render_timeless(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """As `render`, split where the template writes the time: one piece where it writes none."""
        self._require_template()
        checked, chars = check_messages(messages)
        offered = self._check_rest(chars, tools, template_kwargs)
        checked, offered = adapt(checked, offered, self.abilities)
        template = self._tokenizer.get_chat_template(None, offered or None)
        # The name is transformers'. A macro hides what a template's environment calls by that name, and the newline
        # behind it is no part of the text.
        clock = f"{{% macro strftime_now(format) %}}{self._clock_mark}{{% endmacro %}}\n"
        kwargs = {**(template_kwargs or {}), "chat_template": clock + template}
        return self._apply(checked, offered, kwargs, True).split(self._clock_mark)

    def encode_turn(
        self,
        history: list[Message],
        new: list[Message],
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
        last_token: int | None = None,
    ) -> npt.NDArray[np.int32]:
        """The int32 [T] token ids that go on where the model's reply ended.

        `history` are the messages up to that reply, which is the last of them, and `new` those after it. The ids hold
        the end of the reply, the new messages and the generation prompt. Where `last_token`, the last id of the
        session, is already the token that ends a reply, they begin after it. Raises as `render` does, and
        TemplateRefused where the template drops the reply or does not write the new messages after it: then there is
        nothing that could be appended.
        """
        self._require_template()
        told, told_chars = check_messages(history)
        after, after_chars = check_messages(new)
        offered = self._check_rest(told_chars + after_chars, tools, template_kwargs)
        text = self._turn(told[:-1], told[-1].get("tool_calls", []), after, offered, template_kwargs or {}, last_token)
        ids = continuation_ids(self._tokenizer, text)
        opening = ids[:_CLOSING_TOKENS]
        if last_token in opening and last_token in self._end_tokens():
            ids = ids[opening.index(last_token) + 1 :]
        return np.array(ids, dtype=np.int32)

    def _turn(
        self,
        before: list[Message],
        calls: list[dict[str, Any]],
        after: list[Message],
        tools: list[dict[str, Any]],
        kwargs: dict[str, Any],
        last_token: int | None,
    ) -> str:
        """What the template writes for the messages `after`, behind a reply that makes `calls`.

        The reply's own words are in the session as the model wrote them; what stands in for it here only has to be
        found again in what the template writes.
        """
        sentinel = f"reply{secrets.token_hex(12)}"

        def behind_calls(made: list[dict[str, Any]]) -> str:
            text = self._behind(sentinel, [*before, _calling(sentinel, made)], after, tools, kwargs)
            return self._from_end_token(text, last_token)

        with_calls = self.abilities.tool_calls
        if calls and with_calls:
            # Templates read from the call which tool a result is of.
            with suppress(TemplateRefused):
                return behind_calls(calls)
        try:
            return self._behind(sentinel, [*before, _saying(sentinel)], after, tools, kwargs)
        except TemplateRefused:
            # A call that the runtime did not recognise, or results that are not of these calls.
            if after[0]["role"] != "tool" or not with_calls:
                raise
            return behind_calls(_answered_calls(after))

    def _behind(
        self,
        sentinel: str,
        told: list[Message],
        after: list[Message],
        tools: list[dict[str, Any]],
        kwargs: dict[str, Any],
    ) -> str:
        """What the template writes for the messages `after`, behind the sentinel that `told` ends with."""
        marked = [_mark(message, rank) for rank, message in enumerate(after)]
        sample = self._after(sentinel, self._write([*told, *(message for message, _ in marked)], tools, kwargs, True))
        for rank, (message, mark) in enumerate(marked):
            if mark is not None and mark not in sample:
                raise TemplateRefused(
                    f"the model's chat template does not write message {rank} of this turn (role {message['role']}) "
                    "after the model's reply, so it cannot be appended to the session; send the whole conversation "
                    "without a session"
                )
        return self._after(sentinel, self._write([*told, *after], tools, kwargs, True))

    def _from_end_token(self, text: str, last_token: int | None) -> str:
        """The text from the token on that ends a reply: before it comes the rest of a sample call."""
        # A model may end a call with another token than its answers.
        ends = [self._tokenizer.eos_token]
        if last_token in special_token_ids(self._tokenizer):
            ends.insert(0, self._tokenizer.convert_ids_to_tokens(last_token))
        for end in ends:
            if end and end in text:
                return text[text.index(end) :]
        raise TemplateRefused(
            "the model's chat template does not end a tool call with an end token of the model, so no result can be "
            "appended to the session; send the whole conversation without a session"
        )

    def _require_template(self) -> None:
        if not self.has_template:
            raise TemplateRefused(
                "the model has no chat template (is it a base model?); send text or token ids instead"
            )

    def _check_rest(
        self, message_chars: int, tools: list[dict[str, Any]] | None, template_kwargs: dict[str, Any] | None
    ) -> list[dict[str, Any]]:
        offered, tool_chars = check_tools(tools)
        chars = message_chars + tool_chars + check_template_kwargs(template_kwargs, self._reserved_kwargs)
        if chars > self._max_chars:
            raise InvalidRequest("prompt.chat", f"{chars} characters", f"at most {self._max_chars} are taken")
        return offered

    def _write(
        self, messages: list[Message], tools: list[dict[str, Any]], kwargs: dict[str, Any], generation_prompt: bool
    ) -> str:
        messages, tools = adapt(messages, tools, self.abilities)
        return self._apply(messages, tools, kwargs, generation_prompt)

    def _apply(
        self, messages: list[Message], tools: list[dict[str, Any]], kwargs: dict[str, Any], generation_prompt: bool
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=generation_prompt, **kwargs
            )
        # A template is a program of somebody else's: it can fail in any way, and what it says is what helps.
        except Exception as error:
            raise TemplateRefused(f"the model's chat template does not take these messages: {error}") from error
        return str(text)

    def _after(self, sentinel: str, text: str) -> str:
        if text.count(sentinel) != 1:
            raise TemplateRefused(
                "the model's chat template does not keep the model's last reply as it was written, so no turn can be "
                "appended to the session; send the whole conversation without a session"
            )
        return text.partition(sentinel)[2]

    def _end_tokens(self) -> frozenset[int]:
        return special_token_ids(self._tokenizer) | {self._tokenizer.eos_token_id}


def _saying(sentinel: str) -> Message:
    return {"role": "assistant", "content": sentinel}


def _calling(sentinel: str, calls: list[dict[str, Any]]) -> Message:
    """A reply that makes `calls`; the last of them holds the sentinel."""
    last = calls[-1]
    marked = {**last, "function": {**last["function"], "arguments": {"sample": sentinel}}}
    return {"role": "assistant", "content": "", "tool_calls": [*calls[:-1], marked]}


def _answered_calls(after: list[Message]) -> list[dict[str, Any]]:
    """Calls of the tools whose results `after` begins with."""
    results = itertools.takewhile(lambda message: message["role"] == "tool", after)
    return [
        {
            "id": result.get("tool_call_id", f"call{rank:05}"),
            "type": "function",
            "function": {"name": result.get("name", "tool"), "arguments": {}},
        }
        for rank, result in enumerate(results)
    ]


def _mark(message: Message, rank: int) -> tuple[Message, str | None]:
    """The message with a mark in place of its text; no mark where a template may leave the text out."""
    if "tool_calls" in message:
        return message, None
    mark = f"turn{rank}x{secrets.token_hex(12)}"
    return {**message, "content": mark}, mark
