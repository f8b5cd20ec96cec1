"""Plans decide from results alone, and what the recorder writes is what happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent_client import AsyncRadixClient, InvalidArgument
from agent_client.agent import TASKS, Hooks, PlanFailed, RecordedTask, Recorder, Task, Tools, TurnDone, Workspace
from agent_client.agent.steps import Branch, Plan, Use, use
from agent_client.commands.record import run as record_command
from agent_client.traces import TraceWriter, read_trace

from .toy_runtime import Refusal, ToyRuntime

REPOSITORY = Path(__file__).parents[2]


def played(plan: Plan, answer: Callable[[str, dict[str, Any]], str]) -> tuple[list[Use], str]:
    """Every tool call of a plan, branches' included, and what it found."""
    uses: list[Use] = []
    result: Any = None
    while True:
        try:
            step = plan.send(result)
        except StopIteration as end:
            return uses, end.value
        if isinstance(step, Use):
            uses.append(step)
            result = answer(step.tool, dict(step.arguments))
        else:
            parts = [played(branch.plan, answer) for branch in step]
            uses += [each for part, _ in parts for each in part]
            result = tuple(found for _, found in parts)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_plan_depends_on_nothing_but_results(task: Task) -> None:
    tools = Tools(Workspace(REPOSITORY))
    answers: dict[str, str] = {}

    def real(tool: str, arguments: dict[str, Any]) -> str:
        return answers.setdefault(json.dumps([tool, arguments]), tools.run(tool, arguments))

    def recorded(tool: str, arguments: dict[str, Any]) -> str:
        return answers[json.dumps([tool, arguments])]

    first = played(task.plan(), real)
    assert played(task.plan(), recorded) == first
    assert len(first[0]) >= 5


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize(
    "nothing", ["", "0 matches in 0 of 0 files", "error: there is no such file", "0 files, 0 lines"]
)
def test_a_plan_that_finds_nothing_says_so(task: Task, nothing: str) -> None:
    with pytest.raises(PlanFailed):
        played(task.plan(), lambda tool, arguments: nothing)


def test_a_plan_follows_what_the_search_found() -> None:
    (task,) = (task for task in TASKS if task.name == "api")
    tools = Tools(Workspace(REPOSITORY))

    def moved(tool: str, arguments: dict[str, Any]) -> str:
        """The same repository with its API files under another name."""
        asked = {name: str(value).replace("proto/elsewhere", "proto/radixloop") for name, value in arguments.items()}
        real = tools.run(tool, {**arguments, **({"path": asked["path"]} if "path" in asked else {})})
        return real.replace("proto/radixloop", "proto/elsewhere")

    uses, found = played(task.plan(), moved)
    read = [use.arguments["path"] for use in uses if use.tool == "read_file"]
    assert read
    assert all(path.startswith("proto/elsewhere") for path in read)
    assert "Generate" in found


def small_plan() -> Plan:
    yield use("read_file", path="none.txt")
    parts = yield (
        Branch("left", "What is left?", branch_plan("2 + 2")),
        Branch("right", "Right?", branch_plan("3 + 3")),
    )
    yield use("calculate", expression="1 + 1")
    return f"found {len(parts)}"


def branch_plan(expression: str) -> Plan:
    result = yield use("calculate", expression=expression)
    return f"{result}."


async def recorded(toy: ToyRuntime, tmp_path: Path, plan: Callable[[], Plan]) -> tuple[RecordedTask, list[TurnDone]]:
    turns: list[TurnDone] = []
    async with AsyncRadixClient(toy.target) as client:
        recorder = Recorder(client, Tools(Workspace(tmp_path)), max_tokens=4, seed=1, hooks=Hooks(turns.append))
        return await recorder.record(Task("small", "What is there?", plan)), turns


async def test_a_recording_holds_replies_results_latencies_and_branches(toy: ToyRuntime, tmp_path: Path) -> None:
    task, turns = await recorded(toy, tmp_path, small_plan)
    assert task.found == "found 2"
    assert task.turns == len(turns) == 8
    roles = [message["role"] for message in task.messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    missing, left, right = (message for message in task.messages[3:7] if message["role"] == "tool")
    assert missing["content"].startswith("error: read_file: ")
    assert missing["latency_s"] >= 0
    # A branch's result is what its plan found and what the model said at its end.
    assert left["content"].startswith("2 + 2 = 4.\n")
    assert right["content"].startswith("3 + 3 = 6.\n")
    words = [message["content"] for message in task.messages if message["role"] == "assistant"]
    assert all(len(text) == 4 for text in words)
    assert "tool_calls" not in task.messages[-1]


async def test_every_call_has_its_answer_in_trunk_and_branches(toy: ToyRuntime, tmp_path: Path) -> None:
    task, _ = await recorded(toy, tmp_path, small_plan)
    trunk = task.messages
    conversations = [trunk]
    for _, fork, messages in task.branches:
        replies = [i for i, message in enumerate(trunk) if message["role"] == "assistant"]
        conversations.append([*trunk[: replies[fork.turn - 1] + 1], *messages])
    for messages in conversations:
        asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered
        assert len(set(asked)) == len(asked)


async def test_what_is_written_replays_prompt_for_prompt(toy: ToyRuntime, tmp_path: Path) -> None:
    task, _ = await recorded(toy, tmp_path, small_plan)
    with TraceWriter(tmp_path / "trace.jsonl") as writer:
        task.write(writer)
    trace = read_trace(tmp_path / "trace.jsonl")
    assert [(session.id, session.parent and session.parent.turn) for session in trace.sessions] == [
        ("small", None),
        ("small/left", 2),
        ("small/right", 2),
    ]
    replayed = sorted(
        tuple((message["role"], message["content"]) for message in call.prompt)
        for session in trace.sessions
        for call in session.calls
        if not isinstance(call.prompt, str)
    )
    sent = sorted(
        tuple((message.role, message.content) for message in seen.request.prompt.chat.messages) for seen in toy.seen
    )
    assert replayed == sent


async def test_the_same_seed_asks_for_the_same_words(toy: ToyRuntime, tmp_path: Path) -> None:
    await recorded(toy, tmp_path, small_plan)
    seeds = sorted(seen.request.sampling.seed for seen in toy.seen)
    assert len(set(seeds)) == len(seeds)
    toy.seen.clear()
    await recorded(toy, tmp_path, small_plan)
    assert sorted(seen.request.sampling.seed for seen in toy.seen) == seeds


async def test_a_plan_that_cannot_go_on_stops_the_recording(toy: ToyRuntime, tmp_path: Path) -> None:
    def stuck() -> Plan:
        yield use("calculate", expression="1")
        raise PlanFailed("nothing to go by")

    with pytest.raises(PlanFailed, match="nothing to go by"):
        await recorded(toy, tmp_path, stuck)


def test_the_command_records_this_repository(toy: ToyRuntime, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl.gz"
    assert record_command(toy.target, REPOSITORY, out, ["api", "packages"], max_tokens=4, seed=1) == 0
    trace = read_trace(out)
    assert [session.id for session in trace.sessions if session.parent is None] == ["api", "packages"]
    assert sum(session.parent is not None for session in trace.sessions) == 3


def test_the_command_names_what_is_wrong(toy: ToyRuntime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.jsonl"
    assert record_command(toy.target, REPOSITORY, out, ["nosuch"], max_tokens=4, seed=1) == 2
    assert "known are api" in capsys.readouterr().err
    assert record_command(toy.target, tmp_path / "none", out, [], max_tokens=4, seed=1) == 2
    assert "no folder" in capsys.readouterr().err
    assert record_command(toy.target, REPOSITORY, tmp_path / "none" / "t", [], max_tokens=4, seed=1) == 2
    # No repository of the kind that the tasks ask about.
    assert record_command(toy.target, tmp_path, out, ["api"], max_tokens=4, seed=1) == 1
    assert "do the tasks fit" in capsys.readouterr().err


async def test_a_refusal_of_the_runtime_ends_the_recording(toy: ToyRuntime, tmp_path: Path) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "max_tokens is 4")]
    with pytest.raises(InvalidArgument, match="max_tokens is 4"):
        await recorded(toy, tmp_path, small_plan)
