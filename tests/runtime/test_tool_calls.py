"""Tool calls out of generated text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tool_calls import parse_tool_calls


def found(text: str) -> list[tuple[str, Any]]:
    return [(call["name"], json.loads(call["arguments"])) for call in parse_tool_calls(text)]


def call(name: str, arguments: Any, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<tool_call>\n{call('ls', {'path': '.'})}\n</tool_call>", [("ls", {"path": "."})]),
        (
            f"Look:\n<tool_call>{call('ls', {})}</tool_call>\n<tool_call>{call('cat', {'f': 'a'})}</tool_call> done",
            [("ls", {}), ("cat", {"f": "a"})],
        ),
        # The end token can come in place of the last tag, or the next call in place of an end tag.
        (f"<tool_call>{call('ls', {'a': 1})}", [("ls", {"a": 1})]),
        (f"<tool_call>{call('a', {})}<tool_call>{call('b', {})}</tool_call>", [("a", {}), ("b", {})]),
        # One broken call does not hide the others.
        (f"<tool_call>{{broken</tool_call><tool_call>{call('b', {})}</tool_call>", [("b", {})]),
        (f"<tool_call>[{call('a', {})}, {call('b', {})}]</tool_call>", [("a", {}), ("b", {})]),
        (call("ls", {"path": "/"}), [("ls", {"path": "/"})]),
        (call("ls", {"path": "/"}, key="parameters"), [("ls", {"path": "/"})]),
        (f" [{call('a', {})}, {call('b', {'x': [1]})}] ", [("a", {}), ("b", {"x": [1]})]),
        (f"```json\n{call('ls', {})}\n```", [("ls", {})]),
        (call("ls", '{"path": "."}'), [("ls", {"path": "."})]),
        (call("ls", None), [("ls", {})]),
        (call("sag", {"text": "größer 日本 🌍"}), [("sag", {"text": "größer 日本 🌍"})]),
        ("no call at all", []),
        ("", []),
        ('{"answer": 42}', []),
        ('{"name": "Ada", "age": 36}', []),
        ('[{"name": "ls", "arguments": {}}, 7]', []),
        (f"The call would be {call('ls', {})}.", []),
        (call("ls", [1, 2]), []),
        (call("ls", "not json"), []),
        (call("", {}), []),
        ('{"name": 3, "arguments": {}}', []),
        ('{"name": "ls", "arguments": {"x": NaN}}', []),
        ("<tool_call></tool_call>", []),
        (
            f"<tool_call>{call('a', {'x': '}</tool_call><tool_call>'})}</tool_call>",
            [("a", {"x": "}</tool_call><tool_call>"})],
        ),
        (f"<tool_call>{call('a', {})} and more</tool_call>", []),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', []),
    ],
)
def test_calls_are_found(text: str, expected: list[tuple[str, Any]]) -> None:
    assert found(text) == expected


def test_arguments_keep_their_characters() -> None:
    [parsed] = parse_tool_calls(call("say", {"text": "日本"}))
    assert parsed["arguments"] == '{"text": "日本"}'


def test_ids_are_distinct_and_of_the_form_that_strict_templates_ask_for() -> None:
    ids = [parsed["id"] for parsed in parse_tool_calls(f"<tool_call>{call('a', {})}" * 50)]
    assert len(set(ids)) == 50
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in ids)


def test_lone_surrogates_leave_arguments_that_can_be_sent() -> None:
    [parsed] = parse_tool_calls(r'{"name": "say", "arguments": {"text": "\ud83d"}}')
    parsed["arguments"].encode()
    assert json.loads(parsed["arguments"]) == {"text": "\ud83d"}
    assert parse_tool_calls(r'{"name": "\ud83d", "arguments": {}}') == []


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 50_000,
        "<tool_call>" + "[" * 200_000,
        '{"name": "a", "arguments": ' + '{"a": ' * 100_000,
        '{"name": "a", "arguments": {"n": ' + "9" * 100_000 + "}}",
        "```json\n" * 50_000,
        "{" * 500_000,
    ],
    ids=["tags", "nested lists", "nested objects", "huge number", "fences", "braces"],
)
def test_hostile_text_is_no_call(text: str) -> None:
    assert parse_tool_calls(text) == []


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", ',
    '"arguments": {',
    "}",
    "}",
    "[",
    "]",
    '"',
    "\\ud800",
    "\n",
    "```",
]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=20).map("".join))
def test_any_text_is_taken(text: str) -> None:
    for parsed in parse_tool_calls(text):
        assert isinstance(json.loads(parsed["arguments"]), dict)
        parsed["arguments"].encode()
