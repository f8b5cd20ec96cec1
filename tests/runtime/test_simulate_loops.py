"""`radix-runtime simulate`: recorded loops in virtual time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime.cli import app
from runtime.errors import InvalidRequest
from runtime.scheduling.loop_traces import read_loops


def chat(name: str, turns: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": f"I am {name}."}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": f"{name} asks for tool {turn}"})
        messages.append({"role": "tool", "content": f"answer {turn} to {name}"})
    return {"messages": messages}


HASH_IDS = {
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2, 3], "api_time": 2.0},
        {"t": 1.0, "requests": [{"t": 0.0, "in": 64, "out": 5, "hash_ids": [9]}]},
        {"t": 100.0, "in": 192, "out": 7, "hash_ids": [1, 2, 4]},
    ],
}


def write(path: Path, *sessions: dict[str, Any]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(session) + "\n" for session in sessions)
    return path


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["simulate", *args], env={"COLUMNS": "400", "TERM": "dumb"})


def test_chats_share_what_they_have_in_common_and_no_more(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl.gz", chat("Ann", 3), chat("Bob", 2))
    ann, bob = read_loops(file, 9, pause_s=1.0, longest_pause_s=9.0, max_context=8192)
    assert [len(loop) for loop in (ann, bob)] == [3, 2]
    first, second = ann[0].prompt, ann[1].prompt
    assert second[: len(first)].tolist() == first.tolist()
    assert second[len(first) : len(first) + len(ann[0].output)].tolist() == ann[0].output.tolist()
    assert first[:50].tolist() == bob[0].prompt[:50].tolist()
    assert first.tolist() != bob[0].prompt.tolist()


def test_hash_ids_stand_for_blocks_of_tokens(tmp_path: Path) -> None:
    (loop,) = read_loops(
        write(tmp_path / "t.jsonl.gz", HASH_IDS), 1, pause_s=1.0, longest_pause_s=30.0, max_context=8192
    )
    first, second = loop
    assert (len(first.prompt), len(second.prompt), len(second.output)) == (130, 192, 7)
    assert first.prompt[:128].tolist() == second.prompt[:128].tolist()
    assert first.prompt[128] != second.prompt[128]
    # 98 s were recorded.
    assert (first.pause_s, second.pause_s) == (0.0, 30.0)


def test_a_line_that_is_no_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="line 1"):
        read_loops(write(tmp_path / "t.jsonl.gz", {"a": 1}), 1, pause_s=1.0, longest_pause_s=9.0, max_context=99)


def test_every_case_is_run_and_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl.gz", *(chat(f"user {i}", 4) for i in range(6)))
    result = run(str(file), "--order", "fcfs,lpm", "--pool-share", "1,0.5", "--hold-back-s", "0,60", "--json", "-")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["order"], row["pool_share"], row["hold_back_s"]) for row in rows] == [
        (order, share, held) for share in (1.0, 0.5) for order in ("fcfs", "lpm") for held in (0.0, 60.0)
    ]
    whole = rows[0]
    assert whole["hit_rate"] > 0.5
    assert 0 < whole["ttft_p50_s"] < whole["call_p50_s"] < whole["session_p50_s"] <= whole["wall_s"]
    assert "session mean s" in run(str(file), "--order", "fcfs").output


@pytest.mark.parametrize(
    ("option", "value"), [("--order", "lifo"), ("--pool-share", "a"), ("--pool-share", "-1"), ("--cost", "1,2")]
)
def test_bad_options_are_named(tmp_path: Path, option: str, value: str) -> None:
    result = run(str(write(tmp_path / "t.jsonl.gz", chat("Ann", 1))), option, value)
    assert result.exit_code == 2
    assert option in result.output


def test_a_trace_without_a_call_that_fits_is_refused(tmp_path: Path) -> None:
    result = run(str(write(tmp_path / "t.jsonl.gz", chat("Ann", 1))), "--max-context", "2")
    assert result.exit_code == 2
    assert "up to 2 tokens" in result.output


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none.jsonl.gz"))
    assert result.exit_code == 2
    assert "none.jsonl.gz" in result.output
