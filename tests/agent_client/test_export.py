"""Traces as another tool's sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from agent_client.cli import app
from agent_client.traces import Call, Session
from agent_client.traces.abench import abench_sessions
from agent_client.traces.model import calls_from_messages

from .toy_runtime import ToyRuntime

USER = {"role": "user", "content": "go"}


def exported(session: Session) -> list[dict[str, Any]]:
    """With a token a character."""

    def count(prompt: Any) -> int:
        return len(prompt) if isinstance(prompt, str) else sum(len(message["content"]) for message in prompt)

    return list(abench_sessions(session, count))


def text_call(prompt: str, reply: str | None = None, pause: float | None = None) -> Call:
    return Call(prompt, None if reply is None else {"role": "assistant", "content": reply}, pause)


def test_messages_become_turns_with_what_each_adds() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "well", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "2", "latency_s": 1.5},
        {"role": "assistant", "content": "two"},
    ]
    (told,) = exported(Session("s", calls_from_messages(messages, "s")))
    first, second = told["turns"]
    assert (told["session_id"], told["system_prompt"]) == ("s", "")
    assert first["input_delta"] == [{"role": "system", "content": "Be brief."}, USER]
    assert first["assistant_text"] == 'well\n{"name": "add", "arguments": {"a": 1}}'
    assert second["input_delta"] == [{"role": "tool", "content": "2"}]
    assert (first["input_tokens"], first["output_tokens"], first["pre_gap_ms"]) == (11, 43, 0)
    assert (second["input_tokens"], second["output_tokens"], second["pre_gap_ms"]) == (11 + 43 + 1, 3, 1500)


def test_a_reply_within_a_prompt_of_text_is_told_once() -> None:
    calls = (text_call("user: a", "b"), text_call("user: a\n\nassistant: b\n\nuser: c", "d", 0.5))
    (told,) = exported(Session("s", calls))
    assert [turn["input_delta"][0]["content"] for turn in told["turns"]] == ["user: a", "\n\nuser: c"]
    assert [turn["assistant_text"] for turn in told["turns"]] == ["b", "d"]


def test_a_history_that_was_rewritten_begins_another_session() -> None:
    calls = (
        text_call("a", "b"),
        text_call("other", "x"),
        text_call("a: b; c", "d"),
        text_call("a" + " " * 60 + "b; c"),
        text_call("a: b"),
        text_call("a: no"),
        Call((USER,), None),
        Call((USER, {"role": "assistant", "content": "hm"}), None),
    )
    told = exported(Session("s", calls))
    assert [session["session_id"] for session in told] == ["s", *(f"s#{n}" for n in range(2, 8))]
    assert [len(session["turns"]) for session in told] == [2, 1, 1, 1, 1, 1, 1]
    assert told[-1]["turns"][0]["assistant_text"] == ""
    assert told[-1]["turns"][0]["output_tokens"] == 0


def test_the_command_counts_with_the_runtimes_tokenizer(toy: ToyRuntime, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"input": "user: a", "output": "bcd", "session": "s", "timestamp": 1},
        {"input": "user: a\n\nassistant: bcd\n\nuser: é", "output": "e", "session": "s", "timestamp": 2_000_001},
        {"input": "", "output": "e", "session": "s", "timestamp": 3},
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["export", str(trace), "-o", str(out), "-t", toy.target])
    assert done.exit_code == 0
    assert f"1 session, 2 turns in {out}" in done.stdout
    assert "left out" in done.stderr
    first, second = json.loads(out.read_text(encoding="utf-8"))["turns"]
    assert (first["output_tokens"], second["pre_gap_ms"]) == (3, 2000)
    assert second["input_tokens"] > first["input_tokens"] + 3
    assert "é" in out.read_text(encoding="utf-8")


def test_what_cannot_be_written_or_read_is_told(toy: ToyRuntime, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"messages": [USER, {"role": "assistant", "content": "x"}]}))
    for source, out, complaint in (
        (trace, tmp_path / "no" / "out", "No such file"),
        (tmp_path / "none", tmp_path / "out", "No such file"),
    ):
        done = CliRunner().invoke(app, ["export", str(source), "-o", str(out), "-t", toy.target])
        assert done.exit_code == 2
        assert complaint in done.stderr
