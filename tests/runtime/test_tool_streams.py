"""Calls and text told apart while a reply streams, wherever it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tool_calls import CallReader, HeldCalls, StreamedCalls, ToolFormat, parse_tool_calls, recognise
from runtime.tool_calls.formats import HERMES, LLAMA3, MARKERS, MISTRAL_LIST, MISTRAL_NAMED

FORMATS = [HERMES, LLAMA3, MISTRAL_LIST, MISTRAL_NAMED]
Calls = list[tuple[str, dict[str, Any]]]


def written(form: ToolFormat, calls: Calls) -> str:
    """The calls as a grammar of that format holds a model to."""
    parts = [form.before + name + form.between + json.dumps(arguments) + form.after for name, arguments in calls]
    return form.opening + form.separator.join(parts) + form.closing


class Read:
    """What a reader told of a reply that came in pieces."""

    def __init__(self, reader: CallReader, pieces: list[str], cut: bool = False) -> None:
        self.content = ""
        self.names: list[str] = []
        self.arguments: list[str] = []
        self.ids: list[str] = []
        told = [reader.feed(piece) for piece in pieces] + [reader.finish(cut)]
        for piece in told:
            self.content += piece.content
            for call in piece.calls:
                if call.index == len(self.names):
                    assert call.id
                    assert call.name
                    self.names.append(call.name)
                    self.ids.append(call.id)
                    self.arguments.append("")
                else:
                    # The calls come one after the other, and only the first piece of one is named.
                    assert call.index == len(self.names) - 1
                    assert call.name is None
                    assert call.id is None
                self.arguments[call.index] += call.arguments
        whole = [(call["name"], call["arguments"], call["id"]) for call in reader.calls]
        assert whole == list(zip(self.names, self.arguments, self.ids, strict=True))

    @property
    def calls(self) -> Calls:
        return [(name, json.loads(arguments)) for name, arguments in zip(self.names, self.arguments, strict=True)]


def cuts(text: str, places: list[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[start:stop] for start, stop in zip([0, *at], [*at, len(text)], strict=True)]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["</tool_call>", '"}', "\\", "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
some_calls = st.lists(
    st.tuples(
        st.sampled_from(["ls", "read_file", "a.b-c", "größer"]), st.dictionaries(st.text(max_size=5), json_values)
    ),
    max_size=3,
)
# Text that has the beginnings of marks in it, and no whole one.
prose = st.lists(
    st.sampled_from(["<", "<tool", "[TOOL", '{"na', "Look: ", "a < b", "\n", "[1, 2]", "\N{EARTH GLOBE EUROPE-AFRICA}"])
    | st.text("xy ", max_size=4),
    max_size=6,
).map("".join)


def is_prose(text: str, form: ToolFormat) -> bool:
    return form.trigger not in text and not any(mark in text for mark in MARKERS)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(FORMATS), prose, some_calls, prose, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_the_same_calls_and_text(
    form: ToolFormat, before: str, calls: Calls, after: str, places: list[int]
) -> None:
    text = before + (written(form, calls) + after if calls else "")
    if not is_prose(before, form) or not is_prose(after, form) or not is_prose(before + form.trigger[:-1], form):
        return
    whole = Read(StreamedCalls(form), [text])
    assert whole.calls == calls
    said = before.rstrip() if calls else before
    assert whole.content.startswith(said)
    assert whole.content[len(said) :].strip(" \n\t" + form.separator) == after.strip(" \n\t" + form.separator) * bool(
        calls
    )
    for pieces in (cuts(text, places), list(text)):
        read = Read(StreamedCalls(form), pieces)
        assert (read.content, read.names, read.arguments) == (whole.content, whole.names, whole.arguments)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_reply_that_is_cut_short_leaks_no_mark(form: ToolFormat) -> None:
    """Wherever max_tokens falls: no part of a call is text, and what came of the arguments is told."""
    calls: Calls = [("read", {"path": "a/b", "lines": [1, 2]}), ("ls", {})]
    text = "Let me see." + written(form, calls)
    arguments = [json.dumps(value) for _, value in calls]
    for size in range(len("Let me see.") + 5, len(text)):
        for pieces in ([text[:size]], list(text[:size])):
            read = Read(StreamedCalls(form), pieces, cut=True)
            assert read.content == "Let me see.", size
            assert all(whole.startswith(part) for whole, part in zip(arguments, read.arguments, strict=False))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_a_grammar_writes_is_read_without_one_too(form: ToolFormat) -> None:
    calls: Calls = [("read", {"path": "a/b"}), ("ls", {})]
    found = parse_tool_calls(written(form, calls))
    assert [(call["name"], json.loads(call["arguments"])) for call in found] == calls


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {}}',
    "[TOOL_CALLS]",
    "f[ARGS]{}",
    "[",
    "]",
    "```json\n",
    "\n```",
    "\n",
    "x",
    '{"name"',
    "<",
    ";",
]


@settings(deadline=None, max_examples=400)
@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text("ab {", max_size=3), max_size=8).map("".join),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.booleans(),
)
def test_any_cut_of_text_that_no_grammar_held_gives_the_same(text: str, places: list[int], bare: bool) -> None:
    whole = Read(HeldCalls(bare=bare), [text])
    for pieces in (cuts(text, places), list(text)):
        read = Read(HeldCalls(bare=bare), pieces)
        assert (read.content, read.names, read.arguments) == (whole.content, whole.names, whole.arguments)
    if not whole.names:
        assert whole.content == text


@pytest.mark.parametrize("make", [lambda: StreamedCalls(HERMES), lambda: HeldCalls(bare=True)])
def test_text_comes_as_soon_as_it_is_certain(make: Callable[[], CallReader]) -> None:
    reader = make()
    assert reader.feed("Two is").content == "Two is"
    assert reader.feed(" < three").content == " < three"
    # Space before a mark belongs to the call where a grammar says that one follows.
    assert reader.feed(", and <tool").content == (", and" if isinstance(reader, StreamedCalls) else ", and ")
    assert not reader.feed("_call").content
    assert reader.feed("s> are no mark").content.endswith("<tool_calls> are no mark")


def test_arguments_come_as_they_are_written() -> None:
    reader = StreamedCalls(HERMES)
    assert not reader.feed('<tool_call>\n{"name": "wri').calls
    [named] = reader.feed('te", "arguments": ').calls
    assert (named.name, named.arguments) == ("write", "")
    [piece] = reader.feed('{"text": "a\\"}').calls
    assert (piece.index, piece.arguments) == (0, '{"text": "a\\"}')
    [piece] = reader.feed('b"}}\n</tool').calls
    assert piece.arguments == 'b"}'
    assert not reader.feed("_call>").calls


@pytest.mark.parametrize(
    ("rendered", "expected"),
    [
        ('<tool_call>\n{"name": "markedtool", "arguments": {"place": "here"}}\n</tool_call>', HERMES),
        ('[TOOL_CALLS][{"name": "markedtool", "arguments": {"place": "here"}, "id": "call00001"}]</s>', MISTRAL_LIST),
        ('[TOOL_CALLS]markedtool[ARGS]{"place": "here"}</s>', MISTRAL_NAMED),
        ('{"name": "markedtool", "parameters": {"place": "here"}}<|eot_id|>', LLAMA3),
        ("nothing that is known", HERMES),
    ],
)
def test_formats_are_recognised_by_what_the_template_writes(rendered: str, expected: ToolFormat) -> None:
    assert recognise(f"question {rendered}") == expected


def test_a_template_without_line_breaks_is_followed() -> None:
    form = recognise('<tool_call>{"name": "markedtool", "arguments": {"place": "here"}}</tool_call>')
    assert (form.before, form.after) == ('<tool_call>{"name": "', "}</tool_call>")
    spaced = recognise('[TOOL_CALLS] [{"name": "markedtool", "arguments": {}}]')
    assert spaced.opening == "[TOOL_CALLS] ["
