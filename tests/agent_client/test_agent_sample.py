"""The sample that ships: what `make demo` replays."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import agent_client
from agent_client.replay.plan import new_messages
from agent_client.traces import Session, Trace, read_trace

SAMPLE = Path(agent_client.__file__).parent / "samples" / "repository.jsonl"


@pytest.fixture(scope="module")
def header() -> dict[str, Any]:
    with SAMPLE.open(encoding="utf-8") as file:
        first: dict[str, Any] = json.loads(file.readline())
    return first


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(SAMPLE)


@pytest.fixture(scope="module")
def trunks(trace: Trace) -> list[Session]:
    return [session for session in trace.sessions if session.parent is None]


def test_there_are_several_loops_of_six_to_twelve_turns(trunks: list[Session]) -> None:
    assert len(trunks) >= 5
    assert all(6 <= len(session.calls) <= 12 for session in trunks)


def test_one_branches_and_its_results_come_back(trace: Trace) -> None:
    branches = [session for session in trace.sessions if session.parent is not None]
    assert len(branches) >= 2
    for branch in branches:
        assert branch.parent is not None
        assert 2 <= len(branch.calls) <= 3
        (trunk,) = (session for session in trace.sessions if session.id == branch.parent.session)
        assert branch.parent.turn < len(trunk.calls)
        # The branch's own reply stands in the trunk's next prompt.
        last = branch.calls[-1].reply
        assert last is not None
        after = trunk.calls[branch.parent.turn].prompt
        assert any(message["role"] == "tool" and last["content"] in message["content"] for message in after[-3:])


def test_all_share_one_system_prompt_and_one_tool_list(trace: Trace, header: dict[str, Any]) -> None:
    systems = {call.prompt[0]["content"] for session in trace.sessions for call in session.calls}
    assert len(systems) == 1
    assert [tool["function"]["name"] for tool in header["tools"]] == [
        "list_files",
        "read_file",
        "grep",
        "calculate",
        "branch",
    ]
    assert all(session.tools == tuple(header["tools"]) for session in trace.sessions)


def test_every_call_extends_the_one_before(trace: Trace) -> None:
    for session in trace.sessions:
        assert all(new_messages(before, after) for before, after in pairwise(session.calls))


def test_every_tool_that_ran_has_its_measured_latency(trace: Trace) -> None:
    for session in trace.sessions:
        for message in session.calls[-1].prompt:
            if message["role"] == "tool" and message["name"] != "branch":
                assert 0 < message["latency_s"] < 10


def test_the_header_says_what_is_recorded_and_what_is_not(header: dict[str, Any]) -> None:
    assert header["model"] == "smollm2"
    assert "each tool call comes from its task's plan in code" in header["note"]
    assert "often wrong" in header["note"]


def test_nothing_of_the_recording_machine_is_in_it() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert str(Path.home()) not in text
    assert not any(place in text for place in ("/home/", "/root/", "/Users/", "/tmp/"))
