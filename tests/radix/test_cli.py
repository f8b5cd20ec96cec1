"""The commands as a person or a script runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from radix import __main__
from radix.cli import app

CONFIGS = Path(__file__).with_name("configs")
LLAMA = str(CONFIGS / "Llama-3-8B.json")
MOON = [{"input_length": 1024, "hash_ids": ids} for ids in ([1, 2], [1, 2], [3, 4], [1, 5])]
RUN_KEYS = {
    "capacity_tokens",
    "policy",
    "calls",
    "input_tokens",
    "cached_tokens",
    "hit_rate",
    "ideal_hit_rate",
    "seconds",
}

Write = Callable[..., Path]


def radix(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"})


def test_runs_are_written_as_json_and_nothing_else(write_trace: Write) -> None:
    done = radix("simulate", str(write_trace(*MOON)), "--capacity-tokens", "1024,1M,inf", "--json", "-")
    assert done.exit_code == 0
    runs = json.loads(done.stdout)["runs"]
    assert [run["capacity_tokens"] for run in runs] == [1024, 1_000_000, "inf"]
    for run in runs:
        assert run.keys() >= RUN_KEYS
        assert run["hit_rate"] == run["cached_tokens"] / run["input_tokens"]
    assert [run["cached_tokens"] for run in runs] == [1023, 1023 + 512, 1023 + 512]
    assert runs[0]["ideal_hit_rate"] == runs[2]["hit_rate"]


def test_a_table_shows_the_rates_and_a_file_gets_the_json(write_trace: Write, tmp_path: Path) -> None:
    trace, target = str(write_trace(*MOON)), tmp_path / "out.json"
    done = radix("simulate", trace, "--capacity-tokens", "1024", "--capacity-tokens", "inf", "--json", str(target))
    assert done.exit_code == 0
    for text in ("trace.jsonl (mooncake): 4 sessions, 4 calls, 4,096 input tokens", "24.976%", "37.476%", "inf"):
        assert text in done.stdout
    assert len(json.loads(target.read_text())["runs"]) == 2


def test_each_trace_and_policy_has_its_runs(write_trace: Write) -> None:
    traces = [str(write_trace(*MOON, name=name)) for name in ("a.jsonl", "b.jsonl")]
    runs = json.loads(radix("simulate", *traces, "--policy", "all", "--json", "-").stdout)["runs"]
    assert {run["trace"] for run in runs} == set(traces)
    assert {run["policy"] for run in runs} >= {"lru", "agent"}


def test_token_traces_run_in_blocks_of_the_given_size(write_trace: Write) -> None:
    lines = [{"session": "a", "tokens": list(range(n))} for n in (40, 60)]
    trace = str(write_trace(*lines))
    for size, expected in (((), 16), (("--block-size", "4"), 4)):
        (run,) = json.loads(radix("simulate", trace, *size, "--json", "-").stdout)["runs"]
        assert (run["block_size"], run["cached_tokens"]) == (expected, 40)


def test_a_block_size_that_does_not_go_with_the_lengths_is_warned_of(write_trace: Write) -> None:
    done = radix("simulate", str(write_trace(*MOON)), "--block-size", "64", "--json", "-")
    assert "warning: 4 of 4 calls" in done.stderr
    assert json.loads(done.stdout)["runs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--capacity-tokens", "lots"], ["--capacity-tokens", "'lots' is no size"]),
        (["--capacity-tokens", "511"], ["--capacity-tokens", "511 tokens hold no block"]),
        (["--policy", "lru,newest"], ["--policy", "'newest': known policies are"]),
        (["--sessions", "0"], ["--sessions"]),
        (["--block-size", "0"], ["--block-size"]),
        (["--json", "/no/such/folder/x"], ["--json", "/no/such/folder does not exist"]),
    ],
)
def test_a_bad_option_of_simulate_is_named(write_trace: Write, arguments: list[str], words: list[str]) -> None:
    done = radix("simulate", str(write_trace(*MOON)), *arguments)
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    for word in words:
        assert word in said


def test_a_broken_line_ends_the_command_with_one_line(write_trace: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(*MOON, "{")
    monkeypatch.setattr(sys, "argv", ["radix", "simulate", str(path)])
    with pytest.raises(SystemExit) as caught:
        __main__.main()
    assert str(caught.value.code).startswith(f"radix: {path}:5: not JSON")


def test_a_plan_says_what_a_token_takes_and_what_the_wrong_formula_says() -> None:
    done = radix("plan", "--model", LLAMA, "--memory", "80GiB")
    assert done.exit_code == 0
    for text in ("128 KiB", "512 KiB (4x)", "655,360", "its 32 query heads read 8 of them"):
        assert text in done.stdout


def test_plans_stand_side_by_side() -> None:
    models = [str(CONFIGS / f"{name}.json") for name in ("Llama-3-8B", "Gemma-3-4B")]
    config = (CONFIGS / "DeepSeek-V3.json").read_text()
    common = (
        "--model",
        models[0],
        "--model",
        models[1],
        "--config",
        config,
        "--memory",
        "80GiB",
        "--kv-dtype",
        "fp16,fp8_e4m3",
    )
    plans = json.loads(radix("plan", *common, "--session-tokens", "32k,8192", "--json", "-").stdout)["plans"]
    assert [(one["model"], one["dtype"], one["bytes_per_token"]) for one in plans] == [
        ("Llama-3-8B", "fp16", 131072),
        ("Llama-3-8B", "fp8_e4m3", 32 * 2 * 8 * 130),
        ("Gemma-3-4B", "fp16", 139264),
        ("Gemma-3-4B", "fp8_e4m3", 34 * 2 * 4 * 258),
        ("deepseek_v3", "fp16", 70272),
        ("deepseek_v3", "fp8_e4m3", 61 * 578),
    ]
    assert [one["session_tokens"] for one in plans[0]["sessions"]] == [32000, 8192]
    shown = radix("plan", *common).stdout
    for text in ("20 KiB", "29 of 1,024", "latent 512 + RoPE 64", "there is no factor 2", "scales are counted"):
        assert text in shown


def test_a_profile_shows_every_turn_and_the_one_that_no_longer_fits() -> None:
    profile = ("--profile", "start=12k,per-turn=900,turns=40", "--sessions", "16")
    done = radix("plan", "--model", LLAMA, "--memory", "80GiB", *profile)
    assert "16 sessions no longer fit 80 GiB after turn 33: at 41,700 tokens each they need 81.47 GiB" in done.stdout
    (one,) = json.loads(radix("plan", "--model", LLAMA, "--memory", "80GiB", *profile, "--json", "-").stdout)["plans"]
    assert one["profile"]["full_at_turn"] == 33
    assert [turn["tokens"] for turn in one["profile"]["after_turn"]] == [12_000 + 900 * turn for turn in range(41)]
    for turn in one["profile"]["after_turn"]:
        assert f"{turn['tokens']:,}" in done.stdout


def test_a_long_profile_is_shown_in_steps_and_where_it_is_full() -> None:
    profile = ("--profile", "start=12k,per-turn=900,turns=4000", "--sessions", "16")
    shown = radix("plan", "--model", LLAMA, "--memory", "80GiB", *profile).stdout
    assert "of 4001 turns; --json has them all" in shown
    assert "40,800" in shown
    assert "41,700" in shown
    assert len(shown.splitlines()) < 120


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--model", "give at least one --model or --config"]),
        (["--model", LLAMA, "--kv-dtype", "fp12"], ["--kv-dtype", "'fp12' is no dtype"]),
        (["--model", LLAMA, "--session-tokens", "x"], ["--session-tokens", "'x' is no size"]),
        (["--model", LLAMA, "--profile", "start=5"], ["--profile", "per-turn=N is missing"]),
        (["--model", LLAMA, "--profile", "start=5,gain=2"], ["--profile", "'gain=2' is none of start=N, per-turn=N"]),
        (["--model", LLAMA, "--profile", "start=5,per-turn=0"], ["--profile", "'0' is below 1"]),
        (["--model", LLAMA, "--profile", "start=5,per-turn=1,turns=1M"], ["--profile", "the limit is 100000"]),
        (["--model", LLAMA, "--memory", "lots"], ["--memory", "'lots' is no size"]),
    ],
)
def test_a_bad_option_of_plan_is_named(arguments: list[str], words: list[str]) -> None:
    done = radix("plan", "--memory", "80GiB", *arguments)
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    for word in words:
        assert word in said


def without_numpy(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; sys.modules['numpy'] = None; from radix.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, env={"COLUMNS": "100"}
    )


def test_without_numpy_a_command_that_needs_it_says_so(write_trace: Write) -> None:
    done = without_numpy("simulate", str(write_trace(*MOON)))
    assert done.returncode == 1
    assert done.stderr == "radix: this command needs NumPy: pip install 'radixloop[radix]'\n"


@pytest.mark.slow
def test_without_numpy_help_and_plan_work() -> None:
    assert "simulate" in without_numpy("--help").stdout
    done = without_numpy("plan", "--model", LLAMA, "--memory", "80GiB")
    assert (done.returncode, done.stderr) == (0, "")
    assert "128 KiB" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from radix.cli import app; print({'numpy', 'redis', 'torch', 'radix.store'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
