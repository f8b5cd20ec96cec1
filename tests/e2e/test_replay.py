"""`agent-client` as a person runs it, against the real server with a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_client import RadixClient
from agent_client.traces import Fork, TraceWriter

from .conftest import RunningServer

pytestmark = pytest.mark.e2e


def agent_client(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent_client", *map(str, arguments)]
    settings = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=settings, check=False)


def report_of(*arguments: object) -> dict[str, Any]:
    done = agent_client("replay", *arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six loops under one system prompt, one of which branches."""
    path = tmp_path_factory.mktemp("trace") / "loops.jsonl"
    system = {"role": "system", "content": "You look things up in files. " * 8}
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    with TraceWriter(path, tools=[tool]) as writer:
        for loop in range(6):
            messages: list[dict[str, Any]] = [system, {"role": "user", "content": f"task {loop}: find it"}]
            for turn in range(4):
                call = {"type": "function", "id": "c", "function": {"name": "read", "arguments": f'{{"line": {turn}}}'}}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                messages.append(
                    {"role": "tool", "tool_call_id": "c", "content": f"line {turn} of {loop} " * 4, "latency_s": 0.01}
                )
            writer.write_messages(f"loop {loop}", [*messages, {"role": "assistant", "content": "found"}])
        for side in ("left", "right"):
            asked = {"role": "user", "content": f"look {side}"}
            writer.write_messages(side, [asked, {"role": "assistant", "content": "nothing"}], parent=Fork("loop 0", 2))
    return path


@pytest.mark.parametrize(
    "mode", [(), ("--live-replies",), ("--server-sessions",)], ids=["recorded", "live", "sessions"]
)
def test_every_mode_reaches_the_optimum(server: RunningServer, trace: Path, mode: tuple[str, ...]) -> None:
    report = report_of(trace, "--target", server.target, "--output-tokens", 8, "--concurrency", 3, *mode)
    (run,) = report["runs"]
    assert (run["calls"], run["errors"], run["skipped_calls"]) == (32, 0, 0)
    assert run["computed_tokens"] == run["input_tokens"] - run["cached_tokens"]
    assert run["ideal_hit_rate"] > 0.5
    # Calls that start together know each other's prompts in the optimum; a real cache has to compute them first.
    assert run["share_of_ideal"] > (0.9 if mode else 0.95)


def test_one_session_at_a_time_is_the_optimum(server: RunningServer, trace: Path) -> None:
    (run,) = report_of(trace, "--target", server.target, "--output-tokens", 8, "--concurrency", 1, "--sessions", 3)[
        "runs"
    ]
    # The two branches of the first loop start together and share all that they can but their question's first words.
    assert run["ideal_cached_tokens"] - run["cached_tokens"] <= len("<|end|>\n<|user|>look ")
    assert run["evicted_tokens"] == 0


def test_compare_prints_both_and_the_json_has_the_ratios(server: RunningServer, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = agent_client("replay", trace, "--compare", "--per-turn", "--json", file, RADIXLOOP_TARGET=server.target)
    assert done.returncode == 0, done.stderr
    for word in ("no cache", "ratio", "infinite cache", "TTFT p50/p95/p99", "By turn"):
        assert word in done.stdout
    report = json.loads(file.read_text())
    base, cached = report["runs"]
    assert (base["name"], cached["name"]) == ("no_cache", "cached")
    assert base["cached_tokens"] == 0
    assert base["input_tokens"] == cached["input_tokens"]
    assert report["ratios"]["computed_tokens"] == base["computed_tokens"] / cached["computed_tokens"] > 2


def test_json_to_standard_output_is_alone_there(server: RunningServer, trace: Path) -> None:
    done = agent_client("replay", trace, "-t", server.target, "--sessions", 1, "--json", "-")
    assert json.loads(done.stdout)["runs"][0]["errors"] == 0


def test_recorded_pauses_take_their_time(server: RunningServer, trace: Path) -> None:
    report = report_of(trace, "-t", server.target, "--sessions", 1, "--tool-latency", "0.2", "--output-tokens", 1)
    assert report["runs"][0]["wall_s"] >= 4 * 0.2


@pytest.mark.parametrize("mode", [[], ["--live-replies"], ["--server-sessions"]], ids=["recorded", "live", "sessions"])
def test_failed_calls_are_counted_shown_and_exit_with_1(server: RunningServer, tmp_path: Path, mode: list[str]) -> None:
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write_messages("good", [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
        writer.write_messages("bad", [{"role": "wizard", "content": "x"}, {"role": "assistant", "content": "y"}])
    done = agent_client("replay", path, "-t", server.target, *mode)
    assert done.returncode == 1
    assert "1 call failed" in done.stdout
    assert "bad, turn 1: INVALID_ARGUMENT" in done.stdout
    assert "wizard" in done.stdout


def test_ctrl_c_prints_what_there_is_and_stops_the_work(server: RunningServer, trace: Path) -> None:
    command = [sys.executable, "-m", "agent_client", "replay", str(trace), "-t", server.target, "--json", "-"]
    command += ["--output-tokens", "60", "--tool-latency", "0.3", "--concurrency", "1"]
    with RadixClient(server.target) as client:
        before = client.stats().requests_total
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while client.stats().requests_total < before + 3:
            assert process.poll() is None
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    (run,) = json.loads(out)["runs"]
    assert run["interrupted"]
    assert 0 < run["calls"] < 32


def test_the_commands_for_daily_use(server: RunningServer) -> None:
    said = agent_client("generate", "hello", "-n", 5, "-t", server.target)
    assert said.returncode == 0
    assert "5 written (length)" in said.stderr
    answer = json.loads(agent_client("generate", "--system", "s", "hi", "-n", 3, "--json", "-t", server.target).stdout)
    assert answer["usage"]["output_tokens"] <= 3
    stats = agent_client("stats", "-t", server.target)
    assert "pool" in stats.stdout
    assert json.loads(agent_client("stats", "--json", "-t", server.target).stdout)["stats"]["total_blocks"] > 0
    assert "tokens" in agent_client("nodes", "-t", server.target).stdout
    node = json.loads(agent_client("nodes", "--json", "-t", server.target).stdout.splitlines()[0])
    assert node["parent_id"] == 0


def test_chat_keeps_the_conversation_in_the_runtime(server: RunningServer) -> None:
    talk = "hello\nand again\n/tokens\n/new\nonce more\n/quit\n"
    command = [sys.executable, "-m", "agent_client", "chat", "-n", "4", "-t", server.target]
    done = subprocess.run(command, input=talk, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    costs = [line for line in done.stderr.splitlines() if "prompt tokens" in line]
    assert len(costs) == 3
    assert ", 0 of them cached" in costs[0]
    assert ", 0 of them cached" not in costs[1]


def test_what_a_person_gets_wrong_is_said_in_a_line(server: RunningServer, tmp_path: Path) -> None:
    broken = tmp_path / "t.jsonl"
    broken.write_text('{"messages": [{"role": "user", "content": "x"}]}\n{"messages": 3}\n')
    for arguments, status, words in (
        (("replay", broken, "-t", server.target), 2, "t.jsonl line 2: messages is int"),
        (("replay", tmp_path / "none", "-t", server.target), 2, "No such file"),
        (("stats", "-t", "127.0.0.1:1"), 1, "radix-runtime serve"),
        (("generate", "x", "--top-p", 7, "-t", server.target), 1, "top_p"),
        (("generate", "", "-t", server.target), 2, "empty"),
        (("replay", broken, "--tool-latency", "soon"), 2, "neither 'recorded' nor 'none'"),
        (("replay", broken, "--compare", "--no-cache"), 2, "--compare"),
    ):
        done = agent_client(*arguments)
        assert done.returncode == status, (arguments, done.stderr)
        assert words in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
