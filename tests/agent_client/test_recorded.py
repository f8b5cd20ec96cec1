"""Our own trace format: what is written is what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_client.traces import Call, Fork, TraceError, TraceWriter, read_trace

USER = {"role": "user", "content": "u"}
REPLY = {"role": "assistant", "content": "r"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_a_branch_has_its_parents_history(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "seen", "latency_s": 0.25},
        {"role": "tool", "tool_call_id": "2", "content": "also", "latency_s": 0.5},
        REPLY,
        USER,
    ]
    with TraceWriter(path, tools=TOOLS, about={"model": "m"}) as writer:
        writer.write_messages("main", turns)
        writer.write_messages("left", [{"role": "user", "content": "sub"}, REPLY], parent=Fork("main", 1), tools=[])
    trace = read_trace(path)
    main, left = trace.sessions
    assert trace.format == "radixloop-trace"
    assert [list(c.prompt) for c in main.calls] == [turns[:1], turns[:4]]
    assert [c.tool_latency_s for c in main.calls] == [None, 0.75]
    assert main.tools == tuple(TOOLS)
    assert left.tools == ()
    assert left.parent == Fork("main", 1)
    assert list(left.calls[0].prompt) == [*turns[:2], {"role": "user", "content": "sub"}]


def test_the_file_is_lines_that_a_person_can_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with TraceWriter(path, about={"model": "m"}) as writer:
        writer.write_messages("a", [{"role": "user", "content": "é"}, REPLY])
        writer.write_messages("b", [USER, REPLY], parent=Fork("a", 1))
    header, a, b = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(header) == {"format": "radixloop-trace", "version": 1, "tools": [], "model": "m"}
    assert (
        a == '{"session": "a", "messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "r"}]}'
    )
    assert json.loads(b)["parent"] == {"session": "a", "turn": 1}


def test_the_writer_refuses_what_the_reader_would(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_messages("a", [USER, REPLY])
        with pytest.raises(TraceError, match="written already"):
            writer.write_messages("a", [USER, REPLY])
        with pytest.raises(TraceError, match="'z'"):
            writer.write_messages("b", [USER, REPLY], parent=Fork("z", 1))
        with pytest.raises(TraceError, match="has turns 1 to 1"):
            writer.write_messages("b", [USER, REPLY], parent=Fork("a", 2))
        with pytest.raises(TraceError, match="role"):
            writer.write_messages("b", [{"content": "x"}])
    assert [session.id for session in read_trace(tmp_path / "t.jsonl").sessions] == ["a"]


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
replies = st.none() | texts.map(lambda text: {"role": "assistant", "content": text})
prompts = texts | st.lists(texts.map(lambda t: {"role": "user", "content": t}), min_size=1, max_size=3).map(tuple)
latencies = st.none() | st.floats(0, 100)


@settings(deadline=None)
@given(st.lists(st.builds(Call, prompts, replies, latencies), min_size=1, max_size=5))
def test_calls_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, calls: list[Call]) -> None:
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write_calls("a", calls)
    assert list(read_trace(path).sessions[0].calls) == calls


def test_a_branch_off_calls_that_are_text_needs_calls_of_its_own(tmp_path: Path) -> None:
    def write(body: dict[str, Any]) -> Path:
        path = tmp_path / "t.jsonl"
        rows = [
            {"format": "radixloop-trace", "version": 1},
            {"session": "a", "calls": [{"text": "x"}]},
            {"session": "b", "parent": {"session": "a", "turn": 1}, **body},
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    with pytest.raises(TraceError, match="parent 'a' has no messages at turn 1: give calls instead"):
        read_trace(write({"messages": [USER, REPLY]}))
    assert read_trace(write({"calls": [{"text": "x y"}]})).sessions[1].parent == Fork("a", 1)
