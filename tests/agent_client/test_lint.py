"""What `agent-client lint` finds in a trace, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_client.cli import app
from agent_client.lint import Finding, lint
from agent_client.traces import Call, Session, Trace, read_trace
from agent_client.traces.model import calls_from_messages

CLEAN = "You are a clerk. Be brief, and never guess. " * 5


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "id": "1", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "1"}


def tool(name: str, description: str = "does it") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def talk(name: str, head: str = CLEAN, *more: dict[str, Any], **settings: Any) -> Session:
    messages = more or (user("hello"), said("hi"), user("more"), said("yes"))
    return Session(name, calls_from_messages([system(head), *messages], name), **settings)


def found(*sessions: Session) -> list[Finding]:
    return lint(Trace("test", sessions))


def only(*sessions: Session) -> Finding:
    (finding,) = found(*sessions)
    return finding


def test_sessions_that_only_append_are_clean() -> None:
    assert found(talk("a"), talk("b"), talk("c", CLEAN + "Another agent.")) == []


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("2026-05-15 15:00:01", "2026-05-15 15:00:02", "date and time"),
        ("2026-05-15T15:00:01.5Z", "2026-05-15T16:00:01.5Z", "date and time"),
        ("2026-05-15", "2026-05-16", "date"),
        ("May 15, 2026", "May 16, 2026", "date"),
        ("15:00", "15:01", "clock"),
        ("3:00 PM", "4:00 PM", "clock"),
        ("1767225600", "1767225601", "Unix time"),
        ("123e4567-e89b-12d3-a456-426614174000", "223e4567-e89b-12d3-a456-426614174000", "uuid"),
        ("9f86d081884c7d659a2feaa0", "8f86d081884c7d659a2feaa0", "nonce"),
    ],
)
def test_what_changes_near_the_head_is_found_between_sessions(one: str, other: str, kind: str) -> None:
    finding = only(talk("a", f"It is {one}. {CLEAN}"), talk("b", f"It is {other}. {CLEAN}"))
    assert (finding.rule, finding.session, finding.call, finding.message) == ("volatile-head", "b", 1, 0)
    assert f"a {kind} 6 characters into the head" in finding.what
    assert one in finding.what
    assert other in finding.what
    assert "'a'" in finding.what


def test_many_sessions_with_a_clock_are_one_finding_and_a_clock_that_stands_still_is_none() -> None:
    clocks = [talk(str(i), f"It is 10:{i:02}. {CLEAN}") for i in range(30)]
    assert "30 values in 60 calls" in only(*clocks).what
    assert found(*(talk(str(i), f"It is 10:00. {CLEAN}") for i in range(30))) == []


def test_a_clock_that_moves_between_the_calls_of_a_session_is_found_once() -> None:
    calls = [
        Call((system(f"It is 10:{i:02}. {CLEAN}"), *([user("x"), said("y")] * i), user("x")), said("y"))
        for i in range(4)
    ]
    rules = [finding.rule for finding in found(Session("s", tuple(calls)))]
    assert rules.count("volatile-head") == 1


def test_one_session_alone_is_suspected_of_clocks_and_not_of_dates() -> None:
    finding = only(talk("a", f"Now: 2026-05-15 15:00. {CLEAN}"))
    assert finding.rule == "volatile-head"
    assert "if it differs" in finding.why
    assert found(talk("a", f"Today is 2026-05-15. {CLEAN}")) == []


def test_text_prompts_have_heads_too() -> None:
    calls = tuple(Call(f"Time 10:{i:02}:00. Do this.", said("x")) for i in range(2))
    assert only(Session("s", calls)).rule == "volatile-head"


def test_tools_in_another_order_are_found_between_sessions() -> None:
    finding = only(talk("a", tools=(tool("x"), tool("y"))), talk("b", tools=(tool("y"), tool("x"))))
    assert (finding.rule, finding.session, finding.message) == ("tool-order", "b", None)
    assert "number 1 is 'y' here, 'x' in session 'a'" in finding.what


def test_tools_that_change_between_calls_are_found() -> None:
    turns = [(system(CLEAN), user("x")), (system(CLEAN), user("x"), said("y"), user("z"))]
    lists = [(tool("x"), tool("y")), (tool("y"), tool("x"))]
    session = Session("s", tuple(Call(turn, said("y"), None, tools) for turn, tools in zip(turns, lists, strict=True)))
    assert (only(session).rule, only(session).call) == ("tool-order", 2)
    fewer = Session(
        "s", tuple(Call(turn, said("y"), None, tools[:n]) for turn, tools, n in zip(turns, lists, (2, 1), strict=True))
    )
    assert only(fewer).rule == "tool-changed"
    assert "lost x" in only(fewer).what


def test_tool_definitions_that_differ_are_found() -> None:
    finding = only(talk("a", tools=(tool("x", "at 1"),)), talk("b", tools=(tool("x", "at 2"),)))
    assert (finding.rule, "'x'" in finding.what) == ("tool-changed", True)
    turned = {"function": tool("x")["function"], "type": "function"}
    assert "keys in another order" in only(talk("a", tools=(tool("x"),)), talk("b", tools=(turned,))).what


def session_of(*prompts: tuple[dict[str, Any], ...], reply: str = "ok") -> Session:
    return Session("s", tuple(Call(prompt, said(reply)) for prompt in prompts))


FIRST = (system(CLEAN), user("look at the file"), said("ok"), user("and now"))


def test_an_edited_message_is_found_with_its_place() -> None:
    edited = (*FIRST[:1], user("look at the folder"), *FIRST[2:], said("ok"), user("more"))
    finding = only(session_of(FIRST, edited))
    assert (finding.rule, finding.call, finding.message) == ("history-rewritten", 2, 1)
    assert "from character 13 on" in finding.what
    assert '"older"' in finding.what
    assert '"ile"' in finding.what


def test_dropped_messages_are_counted() -> None:
    finding = only(session_of(FIRST, (FIRST[0], FIRST[3], said("ok"), user("more"))))
    assert (finding.rule, finding.message) == ("history-rewritten", 1)
    assert "2 messages were dropped" in finding.what


def test_retries_rewinds_and_other_agents_are_no_rewrites() -> None:
    assert found(session_of(FIRST, FIRST, FIRST[:2], (system("Another agent, of other words"), user("x")))) == []


def test_a_call_is_compared_with_the_nearest_of_the_earlier_ones() -> None:
    other = (system("Sub-agent with its own head"), user("sub"))
    assert (
        found(session_of(FIRST, other, (*FIRST, said("ok"), user("more")), (*other, said("ok"), user("go on")))) == []
    )


def test_reasoning_that_vanishes_is_told_from_an_edit() -> None:
    thought = "<think>hm</think>\n\nthe answer"
    prompt = (system(CLEAN), user("x"))
    session = Session("s", (Call(prompt, said(thought)), Call((*prompt, said("the answer"), user("y")), said("z"))))
    assert (only(session).rule, only(session).message) == ("reasoning-dropped", 2)
    beside = talk("s", CLEAN, user("x"), said("answer", reasoning_content="hm"), user("y"), said("z"))
    assert (only(beside).rule, only(beside).call) == ("reasoning-dropped", 2)


def test_independent_lookups_one_at_a_time_are_found_as_one_run() -> None:
    more = [user("compare R1AAA, R2BBB and R3CCC")]
    for name in ("R1AAA", "R2BBB", "R3CCC"):
        more += [asks("get_reservation", id=name), result(f"{name}: fine")]
    finding = only(talk("s", CLEAN, *more, said("done")))
    assert (finding.rule, finding.call) == ("one-at-a-time", 1)
    assert "calls 1 to 3" in finding.what


@pytest.mark.parametrize(
    "second",
    [
        asks("get_reservation", id="R9ZZZ"),
        asks("cancel_reservation", id="R1AAA"),
        asks("search_flights", to="somewhere the model thought of"),
    ],
)
def test_a_call_that_needs_the_result_before_or_that_acts_is_left_alone(second: dict[str, Any]) -> None:
    more = [
        user("what of R1AAA?"),
        asks("get_user", id="R1AAA"),
        result("has R9ZZZ"),
        second,
        result("x"),
        said("done"),
    ]
    first_tool_same = [user("what of R1AAA?"), asks("get_reservation", id="R1AAA"), *more[2:]]
    assert found(talk("s", CLEAN, *more)) == []
    if "flights" not in str(second):
        assert found(talk("s", CLEAN, *first_tool_same)) == []


def test_a_user_between_two_lookups_makes_them_two() -> None:
    more = [
        user("R1AAA, R2BBB"),
        asks("get_x", id="R1AAA"),
        result("fine"),
        said("well"),
        user("and"),
        asks("get_x", id="R2BBB"),
    ]
    assert found(talk("s", CLEAN, *more, result("x"), said("done"))) == []


# The command


def write(path: Path, *sessions: dict[str, Any]) -> Path:
    lines = [{"format": "radixloop-trace", "version": 1}, *sessions]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["lint", *args], env={"COLUMNS": "300"})


def test_the_command_says_what_it_costs_and_how_to_fix_it(tmp_path: Path) -> None:
    one, other = ([system(f"It is 10:0{i}. {CLEAN}"), user("x"), said("y")] for i in range(2))
    path = write(tmp_path / "trace.jsonl", {"session": "a", "messages": one}, {"session": "b", "messages": other})
    printed = run(str(path))
    assert printed.exit_code == 1
    assert "volatile-head: session b, call 1, message 0" in printed.stdout
    assert "  cost  " in printed.stdout
    assert "  fix   " in printed.stdout
    assert "1 finding in 2 sessions, 2 calls" in printed.stdout
    (finding,) = json.loads(run(str(path), "--json").stdout)
    assert finding.keys() == {"rule", "session", "call", "message", "what", "why", "fix"}


def test_a_clean_trace_exits_with_0_and_a_broken_one_with_2(tmp_path: Path) -> None:
    messages = [system(CLEAN), user("x"), said("y")]
    clean = run(str(write(tmp_path / "clean.jsonl", {"session": "a", "messages": messages})))
    assert (clean.exit_code, clean.stdout) == (0, "0 findings in 1 session, 1 call\n")
    assert run(str(tmp_path / "missing.jsonl")).exit_code == 2


def test_calls_of_a_trace_may_bring_their_own_tools(tmp_path: Path) -> None:
    turns = [[system(CLEAN), user("x")], [system(CLEAN), user("x"), said("y"), user("z")]]
    lists = [[tool("x"), tool("y")], [tool("y"), tool("x")]]
    calls = [{"messages": turn, "reply": said("y"), "tools": tools} for turn, tools in zip(turns, lists, strict=True)]
    path = write(tmp_path / "trace.jsonl", {"session": "a", "calls": calls})
    session = read_trace(path).sessions[0]
    assert [session.tools_of(call)[0]["function"]["name"] for call in session.calls] == ["x", "y"]
    assert "tool-order: session a, call 2\n" in run(str(path)).stdout


@pytest.mark.slow
def test_recorded_airline_loops_ask_for_reservations_one_at_a_time(data_folder: Path) -> None:
    rules = {finding.rule for finding in lint(read_trace(data_folder / "tau-airline" / "sessions.jsonl.gz"))}
    assert rules == {"one-at-a-time"}
