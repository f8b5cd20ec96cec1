"""Turns prompts into token ids off the event loop, with a bound on the text that it will look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from radixloop.v1 import common_pb2

from radix import Namespace
from runtime.errors import InvalidRequest, TemplateRefused
from runtime.histories.boundaries import NO_BOUNDARIES, find_boundaries
from runtime.histories.drift import TemplateDrift, find_drifts, sample_chats
from runtime.histories.encoder import Begun, HistoryBooks, HistoryEncoder, added_in_front
from runtime.histories.parting import PartedChat
from runtime.histories.text_memory import TextMemory
from runtime.models.loaded_model import ModelInfo
from runtime.prompting.chat import ChatRenderer
from runtime.prompting.chat_places import ChatPlaces, Place, char_offset
from runtime.retention.sessions import Session, SessionRefusesPrompt
from runtime.services.convert import ChatInput, Tokens, chat_input, token_array
from runtime.tool_calls import ToolFormat

T = TypeVar("T")

# No prompt that fits the context is anywhere near: real text has 3 to 5 bytes a token.
TEXT_BYTES_PER_TOKEN = 32
WORKERS = 2

# As many tokens of each side as the store remembers of a branch, and twice that before them.
_SHOWN_TOKENS = 16
_SHARED_TOKENS = 32


@dataclass(frozen=True)
class KnownTexts:
    """What of the known texts a prompt may begin with.

    Attributes:
        namespace: what other namespaces sent and got is not known.
        plain_tokens: so many leading ids are those that tokenising the text gives, whatever is known.
        only_look: neither remember the prompt nor count it as a use of what it begins with.
    """

    namespace: Namespace
    plain_tokens: int = 0
    only_look: bool = False


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt's token ids, int32, the chat that they came from, and what its reply is remembered by."""

    tokens: Tokens
    chat: ChatInput | None = None
    begun: Begun | None = None


@dataclass(frozen=True)
class Parting:
    """Where a prompt parts from what is stored.

    Attributes:
        shared: the end of what both have, decoded.
        prompt, stored: how each goes on; of what is stored, a few branches.
        place: in the prompt's chat; None for other forms and in the template's head.
        drift: what the chat template has to do with it, if anything.
    """

    shared: str
    prompt: str
    stored: list[str]
    place: Place | None = None
    drift: TemplateDrift | None = None


class PromptEncoder:
    """Tokenises and detokenises for one model on a few threads of its own.

    Args:
        history_bytes: how much to remember of texts and their ids; 0 remembers nothing.

    Attributes:
        drifts: in what ways the model's chat template does not go on where a turn ended.
    """

    def __init__(self, tokenizer: Any, info: ModelInfo, history_bytes: int = 0) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._renderer = ChatRenderer(tokenizer)
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="text")
        self.drifts = find_drifts(self._renderer)
        self._histories = self._remembering(history_bytes) if history_bytes else None
        self.max_text_bytes = info.context_length * TEXT_BYTES_PER_TOKEN

    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls; blocks. Raises TemplateRefused where it has no chat template."""
        return self._renderer.tool_format

    def close(self) -> None:
        """Let the threads go; what runs on them is left to finish."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _remembering(self, history_bytes: int) -> HistoryEncoder:
        tokenizer, boundaries = self._tokenizer, NO_BOUNDARIES
        if self._renderer.has_template:

            def ids(text: str) -> list[int]:
                return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

            boundaries = find_boundaries(tokenizer, ids, sample_chats(self._renderer))
        return HistoryEncoder(tokenizer, boundaries, TextMemory(history_bytes), added_in_front(tokenizer))

    def history_books(self) -> HistoryBooks | None:
        """Counts of what was remembered; None where nothing is. From any thread."""
        return None if self._histories is None else self._histories.books()

    async def learn(self, prompt: EncodedPrompt, outputs: Sequence[Sequence[int]], texts: Sequence[str]) -> None:
        """Remember what was answered to a prompt: each choice's ids, and the text that the caller got for them."""
        histories, begun = self._histories, prompt.begun
        if histories is None or begun is None:
            return

        def keep() -> None:
            for output, text in zip(outputs, texts, strict=True):
                histories.learn(begun, output, text)

        await self._off_loop(keep, "output")

    async def encode(
        self,
        prompt: common_pb2.Prompt,
        *,
        add_special_tokens: bool = True,
        known: KnownTexts | None = None,
    ) -> EncodedPrompt:
        """Token ids of a prompt that starts anew. Raises InvalidRequest or TemplateRefused.

        Args:
            known: where histories are known: a text that begins with one takes its ids. None knows none.
        """
        form = _form(prompt)
        if form == "token_ids":
            return EncodedPrompt(self._token_ids(prompt.token_ids))
        if form == "text":
            return await self._encode_text(prompt.text, add_special_tokens, known)
        chat = self._chat(prompt.chat)

        def work() -> tuple[Sequence[int] | Tokens, Begun | None]:
            text = self._renderer.render(chat.messages, chat.tools, chat.template_kwargs)
            return self._ids_of(text, False, known)

        tokens, begun = await self._off_loop(work, "prompt.chat")
        return EncodedPrompt(_some(tokens, "prompt.chat"), chat, begun)

    async def encode_turn(self, session: Session, prompt: common_pb2.Prompt) -> EncodedPrompt:
        """Token ids that a turn adds to a session. Raises InvalidRequest, TemplateRefused or SessionRefusesPrompt."""
        form = _form(prompt)
        kind = "chat" if form == "chat" else "tokens"
        if session.kind is not None and session.kind != kind:
            begun = "a chat" if session.kind == "chat" else "text or token ids"
            raise SessionRefusesPrompt(
                f"session_id {session.id!r} was begun with {begun} and goes on that way: "
                f"prompt.{form} does not continue it"
            )
        if kind == "tokens" or not len(session):
            return await self.encode(prompt, add_special_tokens=not len(session))
        chat = self._chat(prompt.chat)
        if prompt.chat.tools and chat.tools != session.tools:
            raise SessionRefusesPrompt(
                f"prompt.chat.tools differ from those that session_id {session.id!r} was begun with: "
                "leave them out, or open a new session"
            )
        kwargs = chat.template_kwargs or session.template_kwargs
        chat = ChatInput(chat.messages, session.tools, kwargs)
        # A copy: other threads read it, and a turn may end meanwhile.
        history, last_token = session.messages.copy(), int(session.tokens[-1])
        tokens = await self._off_loop(
            lambda: self._renderer.encode_turn(history, chat.messages, chat.tools, kwargs, last_token), "prompt.chat"
        )
        return EncodedPrompt(_some(tokens, "prompt.chat"), chat)

    async def render(self, prompt: common_pb2.Prompt) -> str | None:
        """The text of a chat after the template; None for other forms."""
        if _form(prompt) != "chat":
            return None
        chat = self._chat(prompt.chat)
        return await self._off_loop(
            lambda: self._renderer.render(chat.messages, chat.tools, chat.template_kwargs), "prompt.chat"
        )

    async def parting(
        self, prompt: EncodedPrompt | None, tokens: Tokens, at: int, branches: Sequence[Tokens]
    ) -> Parting:
        """Where a prompt parts from what is stored.

        Args:
            prompt: None where the tokens are not those of one prompt.
            tokens: the whole prompt's.
            at: position of the first token that differs.
            branches: the first tokens of what is stored there.
        """

        def find() -> Parting:
            before = tokens[max(0, at - _SHARED_TOKENS) : at]
            shared, ours, *stored = [
                self.decode_head(head) for head in (before, tokens[at : at + _SHOWN_TOKENS], *branches)
            ]
            chat = None if prompt is None else prompt.chat
            if chat is None:
                return Parting(shared, ours, stored)

            def render(messages: list[dict[str, Any]]) -> str:
                return self._renderer.render(messages, chat.tools, chat.template_kwargs)

            text = render(chat.messages)
            offset = char_offset(self._tokenizer, text, tokens, at)
            joined = [self.decode_head(np.concatenate([before, branch])) for branch in branches]
            try:
                places = ChatPlaces(chat, render, text)
                parted = PartedChat(self._renderer, chat, text, places, offset, shared, joined)
                return Parting(shared, ours, stored, places.at(offset), parted.cause())
            except (InvalidRequest, TemplateRefused):
                # It took the chat, and not one that is like it: the template, or the limit on a chat's length.
                return Parting(shared, ours, stored)

        return await self._off_loop(find, "prompt.chat")

    async def decode(self, ids: common_pb2.TokenIds, *, keep_special_tokens: bool) -> str:
        """Text of token ids. Raises InvalidRequest."""
        most = self.max_text_bytes
        given = max(len(ids.ids), len(ids.le_int32) // 4)
        if given > most:
            raise InvalidRequest("token_ids", f"{given} ids", f"at most {most}")
        tokens = token_array("token_ids", ids, self._info.vocab_size)
        return await self._off_loop(
            lambda: self._tokenizer.decode(
                tokens, skip_special_tokens=not keep_special_tokens, clean_up_tokenization_spaces=False
            ),
            "token_ids",
        )

    async def decode_heads(self, heads: Sequence[Tokens]) -> list[str]:
        """Texts of many short runs of tokens, special tokens kept."""
        return await self._off_loop(lambda: [self.decode_head(head) for head in heads], "head")

    def decode_head(self, head: Tokens) -> str:
        """Text of a short run of tokens, special tokens kept; blocks the calling thread."""
        return str(self._tokenizer.decode(head)) if len(head) else ""

    def _token_ids(self, ids: common_pb2.TokenIds) -> Tokens:
        given, most = max(len(ids.ids), len(ids.le_int32) // 4), self._info.context_length
        if given > most:
            # Before they are converted: a message has room for so many that this would hold up everybody's calls.
            raise InvalidRequest("prompt.token_ids", f"{given} ids", f"at most {most}: the context ends there")
        return token_array("prompt.token_ids", ids, self._info.vocab_size)

    def _ids_of(
        self, text: str, add_special_tokens: bool, known: KnownTexts | None
    ) -> tuple[Sequence[int] | Tokens, Begun | None]:
        def tokenise(whole: str) -> list[int]:
            return list(self._tokenizer(whole, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

        if self._histories is None or known is None:
            return tokenise(text), None
        if known.only_look:
            ids = self._histories.look_up(
                known.namespace, text, tokenise, special_added=add_special_tokens, plain_tokens=known.plain_tokens
            )
            return ids, None
        return self._histories.encode(
            known.namespace, text, tokenise, special_added=add_special_tokens, plain_tokens=known.plain_tokens
        )

    async def _encode_text(self, text: str, add_special_tokens: bool, known: KnownTexts | None) -> EncodedPrompt:
        size = len(text.encode())
        if size > self.max_text_bytes:
            raise InvalidRequest("prompt.text", f"{size} bytes", self._text_limit())
        tokens, begun = await self._off_loop(lambda: self._ids_of(text, add_special_tokens, known), "prompt.text")
        return EncodedPrompt(_some(tokens, "prompt.text"), begun=begun)

    def _chat(self, chat: common_pb2.Chat) -> ChatInput:
        size = chat.ByteSize()
        if size > self.max_text_bytes:
            raise InvalidRequest("prompt.chat", f"{size} bytes", self._text_limit())
        return chat_input("prompt.chat", chat, self._info.context_length)

    def _text_limit(self) -> str:
        return (
            f"at most {self.max_text_bytes} bytes ({TEXT_BYTES_PER_TOKEN} for each of the "
            f"{self._info.context_length} tokens of the model's context)"
        )

    async def _off_loop(self, work: Callable[[], T], name: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except UnicodeEncodeError as error:
            raise InvalidRequest(name, error.object[error.start : error.end], "must be valid Unicode text") from None


def _form(prompt: common_pb2.Prompt) -> str:
    form = prompt.WhichOneof("form")
    if form is None:
        raise InvalidRequest("prompt", "unset", "give one of token_ids, text or chat")
    return str(form)


def _some(tokens: Sequence[int] | Tokens, name: str) -> Tokens:
    if not len(tokens):
        raise InvalidRequest(name, "no tokens", "must come to at least one token")
    return np.asarray(tokens, np.int32)
