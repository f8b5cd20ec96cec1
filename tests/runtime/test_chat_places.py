"""Which message a character of a rendered chat belongs to, under templates of several manners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runtime.models.loaded_model import LoadedModel
from runtime.prompting.chat_places import ChatPlaces, Place, char_offset
from runtime.services.convert import ChatInput

Render = Callable[[list[dict[str, Any]]], str]

CHAT = ChatInput(
    [
        {"role": "system", "content": "a a"},
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "a", "arguments": {"a": "a"}}}]},
        {"role": "tool", "content": "aaa"},
    ]
)


def plain(messages: list[dict[str, Any]]) -> str:
    written = []
    for message in messages:
        calls = "".join(f"[call {call['function']['name']}]" for call in message.get("tool_calls", ()))
        written.append(f"<{message['role']}>{message['content']}{calls}</>")
    return "".join(["<head a>", *written, "<assistant>"])


def stripping(messages: list[dict[str, Any]]) -> str:
    return plain([{**message, "content": message["content"].strip()} for message in messages])


def places(render: Render, chat: ChatInput = CHAT) -> list[Place | None]:
    text = render(chat.messages)
    found = ChatPlaces(chat, render, text)
    return [found.at(offset) for offset in range(len(text))]


@pytest.mark.parametrize("render", [plain, stripping])
def test_every_character_has_its_message(render: Render) -> None:
    text, found = render(CHAT.messages), places(render)
    assert found[: text.index("a a")] == [None] * len("<head a><system>")
    for index, content in ((0, "a a"), (1, " a " if render is plain else "a"), (3, "aaa")):
        role = CHAT.messages[index]["role"]
        start = text.index(f"<{role}>") + len(role) + 2
        assert found[start : start + len(content)] == [Place(index, role, offset) for offset in range(len(content))]
    assert found[text.index("<user>") + 1] == Place(1, "user", None)
    # The calls of a message are its own; the end of the last one belongs to nobody after it.
    assert found[text.index("[call")] == Place(2, "assistant", None)
    assert found[-1] == Place(3, "tool", None)


def test_a_template_that_drops_a_message_names_the_others() -> None:
    def dropping(messages: list[dict[str, Any]]) -> str:
        return plain(messages[1:])

    text, found = dropping(CHAT.messages), places(dropping)
    assert found[text.index(" a ", text.index("<user>"))] == Place(1, "user", 0)
    assert found[text.index("[call")] == Place(2, "assistant", None)
    assert {place.message for place in found if place is not None} == {1, 2, 3}


def test_what_stands_in_place_of_a_content_is_of_its_message() -> None:
    def calls_alone(messages: list[dict[str, Any]]) -> str:
        return plain([m for m in messages if not m.get("tool_calls")]).replace("<tool>", "[call a]</><tool>")

    text, found = calls_alone(CHAT.messages), places(calls_alone)
    assert found[text.index("[call")] == Place(2, "assistant", None)
    assert found[text.index("aaa")] == Place(3, "tool", 0)


def test_a_template_that_moves_a_content_is_followed() -> None:
    def last(messages: list[dict[str, Any]]) -> str:
        return plain([*messages[1:], messages[0]])

    text, found = last(CHAT.messages), places(last)
    assert found[text.index("a a", text.index("<system>"))] == Place(0, "system", 0)
    assert found[text.index("aaa")] == Place(3, "tool", 0)


def test_a_template_that_writes_a_content_twice_names_none() -> None:
    assert set(places(lambda messages: plain([*messages, messages[0]]))) == {None}


def test_a_template_that_changes_a_content_is_followed_by_what_comes_after_it() -> None:
    def shouting(messages: list[dict[str, Any]]) -> str:
        return plain([{**m, "content": m["content"].replace("a a", "not the same words")} for m in messages])

    text, found = shouting(CHAT.messages), places(shouting)
    assert found[text.index("same")] == Place(0, "system", 8)
    assert found[text.index("aaa") + 1] == Place(3, "tool", 1)


@pytest.mark.parametrize("fast", [True, False])
def test_a_token_s_first_character_is_found(tiny: LoadedModel, fast: bool) -> None:
    text = "<|user|>naïve — words<|end|>\n"
    ids = np.array(tiny.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    class Slow:
        is_fast = False
        decode = tiny.tokenizer.decode

    tokenizer = tiny.tokenizer if fast else Slow()
    assert [char_offset(tokenizer, text, ids, position) for position in (0, 1, 2, 3)] == [0, 8, 9, 10]
    last = len(ids) - 1
    assert char_offset(tokenizer, text, ids, last) == len(text) - 1
