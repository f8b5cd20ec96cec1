"""Which message of a chat a token of its prompt belongs to."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.services.convert import ChatInput, Tokens


@dataclass(frozen=True, slots=True)
class Place:
    """A token's place in a chat.

    Attributes:
        message: index of the message that holds it.
        offset: characters into that message's content; None where the token is not of its content.
    """

    message: int
    role: str
    offset: int | None


class ChatPlaces:
    """The places of a rendered chat's characters.

    The chat is rendered again with a mark in place of each content. What stands between the marks is the template's
    own, and is found again in the text around the real contents. A template may leave contents out, or move them; one
    that is freer than that has no places.
    """

    def __init__(self, chat: ChatInput, render: Callable[[list[dict[str, Any]]], str], text: str) -> None:
        """`render` renders other messages in place of the chat's, the rest being the same; `text` is the chat's own."""
        self._messages = chat.messages
        self._spans = _content_spans(chat.messages, render, text)

    def at(self, offset: int) -> Place | None:
        """The place of a character; None before the first message."""
        holder: int | None = None
        for rank, (start, end, index) in enumerate(self._spans):
            if start <= offset < end:
                return Place(index, self._messages[index]["role"], offset - start)
            if offset >= end:
                holder = self._behind(index, None if rank + 1 == len(self._spans) else self._spans[rank + 1][2])
        return None if holder is None else Place(holder, self._messages[holder]["role"], None)

    def _behind(self, index: int, following: int | None) -> int:
        """The message of what stands behind the content of message `index`, up to the content that comes next.

        There stand the end of one message and the head of the next, calls, and messages whose content is left out.
        """
        if self._messages[index].get("tool_calls"):
            return index
        left_out = index + 1 < len(self._messages) if following is None else following > index + 1
        if left_out or following is None:
            return index + 1 if left_out else index
        return following


def _content_spans(
    messages: list[dict[str, Any]], render: Callable[[list[dict[str, Any]]], str], text: str
) -> list[tuple[int, int, int]]:
    """Where contents stand in `text`, in its order: start, end and message."""
    tag = secrets.token_hex(12)
    marked = render([{**message, "content": f"m{index}x{tag}"} for index, message in enumerate(messages)])
    marks = list(re.finditer(f"m([0-9]+)x{tag}", marked))
    order = [int(mark[1]) for mark in marks]
    if not marks or len(set(order)) < len(order) or not text.startswith(marked[: marks[0].start()]):
        return []
    spans: list[tuple[int, int, int]] = []
    start = marks[0].start()
    for mark, following, index in zip(marks, [*marks[1:], None], order, strict=True):
        piece = marked[mark.end() : None if following is None else following.start()]
        end = _end_of_content(messages[index].get("content") or "", piece, text, start)
        if end is None:
            return []
        spans.append((start, end, index))
        start = end + len(piece)
    return spans


def _end_of_content(content: str, piece: str, text: str, start: int) -> int | None:
    # Templates write a content as it is, or stripped; what they do beyond that is found by what follows it.
    for written in (content, content.strip()):
        if text.startswith(written + piece, start):
            return start + len(written)
    found = text.find(piece, start)
    return found if piece and found >= 0 else None


def char_offset(tokenizer: Any, text: str, tokens: Tokens, position: int) -> int:
    """The character of `text` at which token number `position` begins; `tokens` are those of `text`."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        if list(encoded["input_ids"]) == tokens.tolist():
            return int(encoded["offset_mapping"][position][0])
    before = str(tokenizer.decode(tokens[:position], clean_up_tokenization_spaces=False))
    # Where the token before ends inside a character, this one is of that character.
    whole = before.rstrip("\ufffd")
    return len(before) if text.startswith(before) else len(whole)
