"""Reading recorded loops: real ones, and small broken ones whose line must be named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agent_client.traces import TraceError, read_trace

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
REPLY = {"role": "assistant", "content": "r"}


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
    return path


def test_tau_airline(data_folder: Path) -> None:
    path = data_folder / "tau-airline" / "sessions.jsonl.gz"
    trace = read_trace(path)
    with gzip.open(path, "rt") as file:
        recorded = [json.loads(line)["messages"] for line in file]
    assert trace.format == "openai-messages"
    assert len(trace.sessions) == 100
    assert trace.calls == sum(message["role"] == "assistant" for messages in recorded for message in messages)
    for session, messages in zip(trace.sessions, recorded, strict=True):
        for call in session.calls:
            assert list(call.prompt) == messages[: len(call.prompt)]
            assert call.reply == messages[len(call.prompt)]


def test_magagent(data_folder: Path) -> None:
    path = data_folder / "magagent" / "calls.jsonl.gz"
    trace = read_trace(path)
    with gzip.open(path, "rt") as file:
        recorded = [json.loads(line) for line in file]
    assert trace.format == "magagent"
    assert {s.id for s in trace.sessions} == {call["session"] for call in recorded}
    sent = [call for call in recorded if call["input"]]
    assert trace.calls == len(sent)
    assert trace.notes == (f"{len(recorded) - len(sent)} calls were recorded without their input and are left out",)
    by_session: dict[str, list[str]] = {}
    for call in sorted(sent, key=lambda call: call["timestamp"]):
        by_session.setdefault(call["session"], []).append(call["input"])
    for session in trace.sessions:
        assert [call.prompt for call in session.calls] == by_session[session.id]
        assert session.calls[0].tool_latency_s is None
        assert all(call.tool_latency_s is not None and call.tool_latency_s >= 0 for call in session.calls[1:])


def test_swe_agent(data_folder: Path) -> None:
    folder = data_folder / "swe-agent-demos"
    trace = read_trace(folder)
    assert trace.format == "swe-agent"
    documents = {}
    for file in sorted(folder.glob("*.traj.gz")):
        with gzip.open(file, "rt") as opened:
            documents[file.name.removesuffix(".traj.gz")] = json.load(opened)
    assert [session.id for session in trace.sessions] == list(documents)
    for session in trace.sessions:
        document = documents[session.id]
        history = document["history"]
        assert len(session.calls) == sum(message["role"] == "assistant" for message in history)
        assert [m["content"] for m in session.calls[-1].prompt] == [
            m["content"] for m in history[: len(session.calls[-1].prompt)]
        ]
        ran = [step.get("execution_time") for step in document.get("trajectory", [])]
        pauses = [call.tool_latency_s for call in session.calls[1:]]
        assert pauses == (ran[: len(pauses)] or [None] * len(pauses))


@pytest.mark.slow
def test_a_trace_without_text_says_what_reads_it(data_folder: Path) -> None:
    for name in ("claude-code/traces.jsonl.gz", "mooncake/conversation_trace.jsonl.gz"):
        with pytest.raises(TraceError, match=r"line 1: this trace holds hash ids instead of text.*radix simulate"):
            read_trace(data_folder / name)


@pytest.mark.parametrize("form", ["lines", "object", "pretty", "array of lists", "array of objects", "one list"])
def test_message_lists_in_every_wrapping(tmp_path: Path, form: str) -> None:
    messages = [SYSTEM, USER, REPLY, USER, REPLY]
    path = tmp_path / "t.json"
    wrapped = {
        "lines": json.dumps(messages) + "\n" + json.dumps({"messages": messages}),
        "object": json.dumps({"messages": messages}),
        "pretty": json.dumps({"messages": messages}, indent=2),
        "array of lists": json.dumps([messages, messages]),
        "array of objects": json.dumps([{"messages": messages}], indent=1),
        "one list": json.dumps(messages),
    }[form]
    path.write_text(wrapped)
    trace = read_trace(path)
    assert trace.format == "openai-messages"
    for session in trace.sessions:
        assert [len(call.prompt) for call in session.calls] == [2, 4]
    assert len(trace.sessions) == (2 if form in ("lines", "array of lists") else 1)


def test_tools_ids_and_latencies_of_a_message_list(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    first = {"id": "x", "tools": [tool], "messages": [USER, REPLY, {**USER, "latency_s": 0.5}, USER, REPLY]}
    path = lines(tmp_path / "t.jsonl", first, {"id": "x", "messages": [USER, REPLY]}, {"id": "y", "messages": [USER]})
    trace = read_trace(path)
    assert [session.id for session in trace.sessions] == ["x", "x#2"]
    assert trace.sessions[0].tools == (tool,)
    assert [call.tool_latency_s for call in trace.sessions[0].calls] == [None, 0.5]
    assert trace.notes == ("1 conversations hold no assistant message and are left out",)


def test_a_trajectory_with_queries_replays_what_was_really_sent(tmp_path: Path) -> None:
    steps = [
        {"query": [SYSTEM, USER], "response": "one", "execution_time": 0.25},
        {"query": [SYSTEM, {"role": "user", "content": "shortened"}], "response": "two", "execution_time": 1.0},
    ]
    path = lines(tmp_path / "t.traj", {"history": [SYSTEM, USER, REPLY], "trajectory": steps})
    calls = read_trace(path).sessions[0].calls
    assert [call.prompt[1]["content"] for call in calls] == ["u", "shortened"]
    assert [call.tool_latency_s for call in calls] == [None, 0.25]


def test_replies_of_a_demonstration_are_no_calls(tmp_path: Path) -> None:
    history = [SYSTEM, USER, {**REPLY, "is_demo": True}, USER, REPLY]
    calls = read_trace(lines(tmp_path / "t.traj", {"history": history})).sessions[0].calls
    assert [len(call.prompt) for call in calls] == [4]


TIMED = {"history": [USER, REPLY], "trajectory": [{"execution_time": "x"}]}
NAMED = {"session": "a", "messages": [USER, REPLY]}
GOOD = {"messages": [USER, REPLY]}
CALL = {"input": "i", "output": "o", "session": "s", "timestamp": 5}
HEADER = {"format": "radixloop-trace", "version": 1}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([GOOD, "{broken"], r"t\.jsonl line 2: not JSON: .* at column 2"),
        ([GOOD, "", GOOD, '{"messages": 3}'], r"line 4: messages is int"),
        ([GOOD, {"messages": [USER, {"content": "x"}]}], r"line 2: messages\[1\].role is None"),
        ([GOOD, {"messages": [REPLY]}], r"line 2: messages\[0\] is a reply with nothing before it"),
        ([GOOD, {"messages": [USER, "x", REPLY]}], r"line 2: messages\[1\] is str"),
        ([{"messages": [{**USER, "latency_s": -1}, REPLY]}], r"line 1: messages\[0\].latency_s is -1"),
        ([{**GOOD, "tools": "f"}], "line 1: tools is no list"),
        ([CALL, {**CALL, "timestamp": "x"}], "line 2: timestamp is 'x'"),
        ([CALL, GOOD], "line 2: a call needs input"),
        ([CALL, {**CALL, "input": 3}], "line 2: input, output and session must be text"),
        ([{"history": [USER, 3]}], "a message of the history is int"),
        (
            [TIMED],
            r"trajectory\[0\].execution_time is 'x'",
        ),
        ([{**HEADER, "version": 2}], "line 1: version is 2: this client reads version 1"),
        ([HEADER, 3], "line 2: a session is a JSON object"),
        ([HEADER, {"messages": []}], "line 2: session is None"),
        ([HEADER, {"session": "a"}], "line 2: exactly one of messages and calls"),
        (
            [HEADER, NAMED, NAMED],
            "line 3: session 'a'",
        ),
        ([HEADER, {"session": "b", "parent": {"session": "a", "turn": 1}, "messages": []}], "line 2: parent.session"),
        ([HEADER, {"session": "b", "parent": {"session": "a"}, "messages": []}], "line 2: parent needs session"),
        ([HEADER, {"session": "a", "calls": [{"text": "x"}, {}]}], r"line 2: calls\[1\]: exactly one of text and"),
        ([HEADER, {"session": "a", "calls": [{"text": "x", "latency_s": "y"}]}], r"calls\[0\].latency_s is 'y'"),
        ([HEADER, {"session": "a", "calls": [{"messages": [{}]}]}], r"calls\[0\].messages\[0\].role"),
        ([HEADER], "no calls in it"),
        ([{"messages": [USER]}], "no calls in it"),
        ([], "the file is empty"),
        ([{"what": 1}], "line 1: no known trace format starts like this; known are radixloop-trace"),
        (["[1, 2]"], "no known trace format"),
        (["[" * 100_000], "line 1: nested too deeply"),
    ],
)
def test_a_broken_trace_is_named_by_line(tmp_path: Path, values: list[Any], word: str) -> None:
    with pytest.raises(TraceError, match=word):
        read_trace(lines(tmp_path / "t.jsonl", *values))


def test_a_broken_document_is_named_by_the_line_where_it_breaks(tmp_path: Path) -> None:
    path = tmp_path / "t.traj"
    path.write_text('{\n  "history": [\n    {"role": }\n  ]\n}\n')
    with pytest.raises(TraceError, match=r"t\.traj line 3: not JSON"):
        read_trace(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"messages": "\xff"}\n')
    with pytest.raises(TraceError, match="line 2: not UTF-8"):
        read_trace(path)


def test_a_gzip_file_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 50)[:-20])
    with pytest.raises(TraceError, match="broken gzip file"):
        read_trace(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match=r"no \.traj, \.json or \.jsonl file in this folder"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="format is 'x': known are"):
        read_trace(tmp_path, "x")


def test_a_named_format_is_not_guessed(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", {**CALL, **GOOD})
    assert read_trace(path).format == "magagent"
    assert read_trace(path, "openai-messages").format == "openai-messages"


def test_sessions_of_a_folder_keep_their_branches_under_new_names(tmp_path: Path) -> None:
    branch = {"session": "b", "parent": {"session": "a", "turn": 1}, "messages": [USER, REPLY]}
    for name in ("one.jsonl", "two.jsonl"):
        lines(tmp_path / name, HEADER, {"session": "a", "messages": [USER, REPLY]}, branch)
    trace = read_trace(tmp_path)
    assert [session.id for session in trace.sessions] == ["a", "b", "a#2", "b#2"]
    assert trace.sessions[3].parent is not None
    assert trace.sessions[3].parent.session == "a#2"
