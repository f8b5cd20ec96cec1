"""Replaying against the toy runtime: order, branches, pauses, live replies, limits, failures, Ctrl-C."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent_client import AsyncRadixClient, RetryPolicy
from agent_client.replay import CallRecord, Hooks, ReplayOptions, experiment
from agent_client.traces import Call, Fork, Session, Trace, read_trace
from agent_client.traces.model import calls_from_messages

from .toy_runtime import CONTEXT, Refusal, Seen, ToyRuntime

RUN_KEYS = """calls input_tokens cached_tokens computed_tokens hit_rate ideal_hit_rate output_tokens wall_s
    ttft_first_p50_s ttft_later_p50_s ttft_later_p95_s itl_p50_s itl_p95_s output_tokens_per_s errors"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def conversation(name: str, turns: int = 3, size: int = 1, **more: Any) -> Session:
    messages = [{"role": "system", "content": "one system prompt for all"}]
    for turn in range(turns):
        messages += [user(f"{name}{turn}" * size), reply(f"recorded{turn}")]
    return Session(name, calls_from_messages(messages, name), **more)


def branch(name: str, parent: Session, turn: int) -> Session:
    call = parent.calls[turn - 1]
    assert call.reply is not None
    own = [user(f"sub question of {name}"), reply("sub answer"), user("more"), reply("again")]
    return Session(name, calls_from_messages(own, name, (*call.prompt, call.reply)), parent=Fork(parent.id, turn))


async def replay(toy: ToyRuntime, *sessions: Session, **settings: Any) -> dict[str, Any]:
    known = {name: settings.pop(name) for name in list(settings) if name in ReplayOptions.__dataclass_fields__}
    options = ReplayOptions(**{"output_tokens": 4, **known})
    async with AsyncRadixClient(toy.target, retry=RetryPolicy(max_attempts=1)) as client:
        return await experiment(client, Trace("test", sessions), options, title="t", **settings)


def of(toy: ToyRuntime, name: str) -> list[Seen]:
    """A conversation's calls in order of arrival."""
    return [seen for seen in toy.seen if f"<user>{name}0".encode() in seen.prompt]


async def test_a_session_is_one_conversation_unless_the_runtime_keeps_it(toy: ToyRuntime) -> None:
    await replay(toy, conversation("a"), conversation("b" * 200))
    names = {name: {seen.request.conversation for seen in of(toy, name)} for name in ("a", "b" * 200)}
    assert [len(found) for found in names.values()] == [1, 1]
    assert names["a"] != names["b" * 200]
    assert all(0 < len(name) <= 128 for found in names.values() for name in found)
    toy.seen.clear()
    await replay(toy, conversation("a"), server_sessions=True)
    assert not any(seen.request.HasField("conversation") for seen in toy.seen)


async def test_misses_are_told_by_cause_where_the_runtime_does(toy: ToyRuntime) -> None:
    report = await replay(toy, conversation("a"), conversation("b"), runs=("no_cache", "cached"), flush=True)
    base, cached = report["runs"]
    assert base["missed_tokens_by_cause"] is None
    assert cached["missed_tokens_by_cause"] == {"never_seen": cached["computed_tokens"]}


async def test_the_report_has_every_key_and_the_books_agree(toy: ToyRuntime) -> None:
    report = await replay(toy, conversation("a"), conversation("b"), concurrency=1)
    (run,) = report["runs"]
    for key in RUN_KEYS.split():
        assert run[key] is not None, key
    assert (run["name"], run["calls"], run["sessions"], run["errors"]) == ("cached", 6, 2, 0)
    assert run["output_tokens"] == 24
    assert run["input_tokens"] == sum(len(seen.prompt) for seen in toy.seen)
    assert run["computed_tokens"] + run["cached_tokens"] == run["input_tokens"]
    # The toy's cache is a perfect one.
    assert run["cached_tokens"] == run["ideal_cached_tokens"] > 0
    assert run["share_of_ideal"] == 1.0
    assert [turn["calls"] for turn in run["turns"]] == [2, 2, 2]
    assert sum(turn["input_tokens"] for turn in run["turns"]) == run["input_tokens"]
    assert report["ratios"] is None
    assert (report["model"], report["kv_dtype"]) == ("toy", "int8")


async def test_recorded_replies_are_the_history(toy: ToyRuntime) -> None:
    session = conversation("a")
    await replay(toy, session)
    for seen, call in zip(toy.seen, session.calls, strict=True):
        assert [m.content for m in seen.request.prompt.chat.messages] == [m["content"] for m in call.prompt]
    assert all(seen.request.sampling.ignore_eos for seen in toy.seen)
    assert {seen.request.sampling.max_tokens for seen in toy.seen} == {4}


async def test_live_replies_are_the_history(toy: ToyRuntime) -> None:
    await replay(toy, conversation("a"), live_replies=True)
    first, second, third = (seen.request for seen in toy.seen)
    written = bytes(97 + (len(toy.seen[0].prompt) + i) % 26 for i in range(4)).decode()
    assert second.prompt.chat.messages[2].content == written
    assert [m.content for m in third.prompt.chat.messages][:3] == [m.content for m in second.prompt.chat.messages][:3]
    assert not first.sampling.ignore_eos
    assert b"recorded" not in toy.seen[2].prompt


async def test_server_sessions_send_only_what_is_new(toy: ToyRuntime) -> None:
    trunk = conversation("a")
    sessions = (trunk, branch("b", trunk, 2))
    report = await replay(toy, *sessions, server_sessions=True, live_replies=True)
    assert [len(seen.request.prompt.chat.messages) for seen in toy.seen] == [2, 1, 1, 1, 1]
    assert all(seen.request.HasField("session_id") for seen in toy.seen)
    assert toy.calls("Fork") == 1
    assert toy.sessions == {}
    assert report["runs"][0]["share_of_ideal"] == 1.0


async def test_a_history_that_was_rewritten_opens_a_new_session(toy: ToyRuntime) -> None:
    calls = [
        Call((user("a"),), reply("x")),
        Call((user("other"),), reply("y")),
        Call((user("other"), reply("y"), user("c"))),
    ]
    await replay(toy, Session("s", tuple(calls)), server_sessions=True, live_replies=True)
    assert toy.calls("Open") == 2
    assert [len(seen.request.prompt.chat.messages) for seen in toy.seen] == [1, 1, 1]


async def test_calls_of_a_session_run_in_order_and_sessions_side_by_side(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.01
    names = ("a", "b", "c", "d")
    await replay(toy, *map(conversation, names), concurrency=2)
    for name in names:
        calls = of(toy, name)
        assert len(calls) == 3
        assert all(before.ended_s <= after.started_s for before, after in pairwise(calls))
    edges = sorted([(s.started_s, 1) for s in toy.seen] + [(s.ended_s, -1) for s in toy.seen])
    running = [sum(step for _, step in edges[: i + 1]) for i in range(len(edges))]
    assert max(running) == 2


async def test_branches_run_in_parallel_before_their_parent_goes_on(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.02
    trunk = conversation("a")
    report = await replay(toy, trunk, branch("x", trunk, 2), branch("y", trunk, 2), concurrency=1)
    subs = [seen for seen in toy.seen if b"sub question" in seen.prompt]
    trunk_calls = [seen for seen in toy.seen if b"sub question" not in seen.prompt]
    firsts = [seen for seen in subs if b"sub answer" not in seen.prompt]
    assert len(subs) == 4
    assert trunk_calls[1].ended_s <= min(seen.started_s for seen in subs)
    assert max(seen.started_s for seen in firsts) < min(seen.ended_s for seen in firsts)
    assert max(seen.ended_s for seen in subs) <= trunk_calls[2].started_s
    # A branch goes on counting from the turn that it left: only the trunk's first call is a first call.
    assert [turn["calls"] for turn in report["runs"][0]["turns"]] == [1, 1, 3, 2]


async def test_pauses_are_kept_when_asked_for(toy: ToyRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("agent_client.replay.driver.asyncio.sleep", sleep)
    calls = tuple(Call(f"prompt {i}", tool_latency_s=latency) for i, latency in enumerate([9.0, 0.5, None, 2.0]))
    for latency in ("none", "recorded", 0.25):
        await replay(toy, Session("s", calls), tool_latency=latency)
    assert slept == [0.5, 2.0, 0.25, 0.25, 0.25]


async def test_compare_runs_without_and_with_the_cache_from_an_empty_one(toy: ToyRuntime) -> None:
    report = await replay(toy, conversation("a"), runs=("no_cache", "cached"), flush=True)
    base, cached = report["runs"]
    assert [base["name"], cached["name"]] == ["no_cache", "cached"]
    assert [seen.request.bypass_cache for seen in toy.seen] == [True] * 3 + [False] * 3
    assert (base["cached_tokens"], base["computed_tokens"]) == (0, base["input_tokens"])
    assert base["ideal_hit_rate"] == cached["ideal_hit_rate"] == cached["hit_rate"]
    assert not any(flush.HasField("namespace") for flush in toy.flushes)
    assert len(toy.flushes) == 2
    ratios = report["ratios"]
    assert ratios["computed_tokens"] == base["input_tokens"] / cached["computed_tokens"]
    assert ratios["prefill_s"] == pytest.approx(ratios["computed_tokens"])
    # Later calls compute little, the first all of it: at its pace, the cache saved what the baseline took longer.
    assert cached["saved_prefill_s"] == pytest.approx(base["prefill_s"] - cached["prefill_s"])


async def test_each_run_has_a_namespace_of_its_own_unless_one_is_named(toy: ToyRuntime) -> None:
    for _ in range(2):
        await replay(toy, conversation("a", turns=1))
    report = None
    for _ in range(2):
        report = await replay(toy, conversation("a", turns=1), salt="kept")
    salts = [seen.request.namespace.salt for seen in toy.seen]
    assert salts[0] != salts[1]
    assert salts[2:] == ["kept", "kept"]
    assert report is not None
    assert report["runs"][0]["cached_tokens"] == report["runs"][0]["input_tokens"] - 1


async def test_sessions_are_the_first_ones_or_drawn_by_seed(toy: ToyRuntime) -> None:
    sessions = [conversation(name, turns=1) for name in "abcdef"]

    async def drawn(**choice: Any) -> list[bytes]:
        toy.seen.clear()
        await replay(toy, *sessions, concurrency=1, **choice)
        return [seen.prompt for seen in toy.seen]

    everything = await drawn()
    assert await drawn(sessions=2) == everything[:2]
    assert await drawn(sessions=2, seed=1) == await drawn(sessions=2, seed=1)
    assert sorted(await drawn(seed=3)) == everything
    assert len({tuple(await drawn(sessions=3, seed=seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("live", [False, True])
async def test_a_session_stops_where_it_outgrows_the_context(toy: ToyRuntime, live: bool) -> None:
    report = await replay(
        toy, conversation("a", turns=6, size=20), conversation("b"), max_context=200, live_replies=live, concurrency=1
    )
    (run,) = report["runs"]
    made = len(of(toy, "a"))
    assert 0 < made < 6
    assert (run["calls"], run["cut_sessions"], run["skipped_calls"]) == (made + 3, 1, 6 - made)
    assert max(len(seen.prompt) + 4 for seen in toy.seen) <= 200
    if not live:
        # The next one would not have fitted.
        following = "".join(f"<{m['role']}>{m['content']}" for m in conversation("a", 6, 20).calls[made].prompt)
        assert len(following + "<assistant>") + 4 > 200
    assert run["errors"] == 0


async def test_calls_that_stand_alone_are_left_out_one_by_one(toy: ToyRuntime) -> None:
    calls = tuple(Call("x" * size) for size in (10, 500, 20))
    report = await replay(toy, Session("s", calls), max_context=100)
    assert [len(seen.prompt) for seen in toy.seen] == [10, 20]
    assert report["runs"][0]["skipped_calls"] == 1


async def test_the_models_context_is_the_limit_when_none_is_given(toy: ToyRuntime) -> None:
    report = await replay(toy, Session("s", (Call("x" * CONTEXT),)), Session("t", (Call("y"),)))
    assert [len(seen.prompt) for seen in toy.seen] == [1]
    assert report["options"]["max_context"] == CONTEXT


async def test_a_failed_call_ends_its_session_and_no_other(toy: ToyRuntime) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.INTERNAL, "out of luck")]
    report = await replay(toy, conversation("a"), conversation("b"), concurrency=1)
    (run,) = report["runs"]
    assert (run["calls"], run["errors"], run["skipped_calls"]) == (3, 1, 2)
    assert run["error_messages"] == ["a, turn 1: INTERNAL: out of luck"]


async def test_a_call_that_broke_halfway_counts_as_failed(toy: ToyRuntime) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.INTERNAL, after_messages=3)]
    report = await replay(toy, conversation("a", turns=1), conversation("b", turns=1), concurrency=1)
    (run,) = report["runs"]
    assert (run["calls"], run["errors"], run["output_tokens"]) == (1, 1, 4)
    # Its prompt was sent, so the next session's head was known.
    assert run["ideal_cached_tokens"] == run["cached_tokens"] > 0


async def test_a_runtime_that_went_away_is_not_asked_again_and_again(toy: ToyRuntime) -> None:
    toy.refusals["Generate"] = [Refusal(grpc.StatusCode.UNAVAILABLE)]
    report = await replay(toy, *map(conversation, "abcd"), concurrency=1)
    assert (report["runs"][0]["errors"], report["runs"][0]["skipped_calls"]) == (1, 11)
    assert toy.calls("Generate") == 1


async def test_cancelling_reports_what_finished(toy: ToyRuntime) -> None:
    toy.token_delay_s = 0.02
    finished: list[CallRecord] = []

    def on_call(record: CallRecord) -> None:
        finished.append(record)
        if len(finished) == 2:
            toy.token_delay_s = 1.0
            asyncio.get_running_loop().call_later(0.2, task.cancel)

    hooks = Hooks(on_call=on_call)
    task = asyncio.create_task(replay(toy, *map(conversation, "abc"), runs=("cached", "no_cache"), hooks=hooks))
    report = await task
    (run,) = report["runs"]
    assert run["interrupted"]
    assert run["calls"] >= 2
    assert run["errors"] == 0
    while sum(seen.cancelled for seen in toy.seen) + run["calls"] < len(toy.seen):
        await asyncio.sleep(0.01)
    assert run["calls"] < len(toy.seen)


async def test_a_real_session_against_a_perfect_cache(toy: ToyRuntime, data_folder: Path) -> None:
    trace = read_trace(data_folder / "tau-airline" / "sessions.jsonl.gz")
    report = await replay(toy, *trace.sessions[:1], output_tokens=1)
    (run,) = report["runs"]
    assert run["calls"] == len(trace.sessions[0].calls)
    assert run["cached_tokens"] == run["ideal_cached_tokens"]
    assert run["hit_rate"] > 0.8
