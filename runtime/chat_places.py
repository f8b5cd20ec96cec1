"""Which message of a chat a token of its prompt belongs to."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.convert import ChatInput, Tokens


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


def place_in_chat(
    chat: ChatInput, render: Callable[[list[dict[str, Any]]], str], text: str, offset: int
) -> Place | None:
    """The place of the character `offset` of the rendered chat; None before the first message.

    Args:
        render: renders other messages in place of the chat's, the rest being the same.
        text: the chat, rendered.
    """
    spans = _content_spans(chat, render, text)
    if spans is None:
        return None
    holder: int | None = None
    for rank, (start, end, index) in enumerate(spans):
        if start <= offset < end:
            return Place(index, chat.messages[index]["role"], offset - start)
        if offset >= end:
            holder = _behind(chat.messages, index, None if rank + 1 == len(spans) else spans[rank + 1][2])
    return None if holder is None else Place(holder, chat.messages[holder]["role"], None)


def _behind(messages: list[dict[str, Any]], index: int, following: int | None) -> int:
    """The message of what stands behind the content of message `index`, up to the content that comes next.

    There stand the end of one message and the head of the next, calls, and messages whose content is left out.
    """
    if messages[index].get("tool_calls"):
        return index
    left_out = index + 1 < len(messages) if following is None else following > index + 1
    if left_out or following is None:
        return index + 1 if left_out else index
    return following


def _content_spans(
    chat: ChatInput, render: Callable[[list[dict[str, Any]]], str], text: str
) -> list[tuple[int, int, int]] | None:
    """Where contents stand in `text`, in its order: start, end and message; None where the template is too free.

    The chat is rendered again with a mark in place of each content. What stands between the marks is the template's
    own, and is found again in `text` around the real contents. A template may leave contents out, or move them.
    """
    marks = [f"m{index}x{secrets.token_hex(12)}" for index in range(len(chat.messages))]
    marked = render([{**message, "content": mark} for message, mark in zip(chat.messages, marks, strict=True)])
    if any(marked.count(mark) > 1 for mark in marks):
        return None
    places = sorted((marked.find(mark), index) for index, mark in enumerate(marks) if mark in marked)
    spans: list[tuple[int, int, int]] = []
    head = marked[: places[0][0]] if places else marked
    if not text.startswith(head):
        return None
    start = len(head)
    for rank, (place, index) in enumerate(places):
        behind = place + len(marks[index])
        piece = marked[behind : places[rank + 1][0] if rank + 1 < len(places) else None]
        end = _end_of_content(chat.messages[index].get("content") or "", piece, text, start)
        if end is None:
            return None
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
