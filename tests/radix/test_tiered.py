"""A device with tiers behind it, simulated: against one tier, and token by token."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from radix.cli import app
from radix.cold.invariants import check_cold
from radix.errors import InvalidArgument
from radix.model_shapes import model_shape
from radix.simulate import ideal, serve_all, simulate
from radix.tiered.layout import Layout, parse_tiers
from radix.tiered.run import TieredRun, simulate_tiers
from radix.tiered.service import TieredService
from radix.traces import Call, Trace

CONFIG = str(Path(__file__).with_name("configs") / "Llama-3-8B.json")
SHAPE = model_shape(CONFIG)
RATES = {"host": 25 * 10**9, "disk": 3 * 10**9}


def sessions(seed: int, *, kind: str = "claude-code", unit: int = 64) -> Trace:
    """Sessions of growing paths, called in random turns."""
    random = Random(seed)
    paths = [[1000 * s] for s in range(6)]
    calls = []
    for _ in range(150):
        s = random.randrange(len(paths))
        paths[s] = paths[s][: random.choice([999, 999, 3])] + [random.randrange(10**6) for _ in range(2)]
        paths[s] = paths[s][:30]
        path = np.array(paths[s], dtype=np.int32)
        calls.append(Call(str(s), path, len(path) * unit, path[:0]))
    return Trace(Path("t"), kind, unit, calls, len(paths))


def layout(rate: int = 100, **blocks_of: int) -> Layout:
    sizes = {name: tokens * 131_072 for name, tokens in blocks_of.items()}
    return Layout(SHAPE, "fp16", sizes, RATES, rate)


def run(trace: Trace, size: int, machine: Layout, policy: str = "lru") -> TieredRun:
    return simulate_tiers(trace, machine, best=ideal(trace, size), block_size=size, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lru", "agent"])
@pytest.mark.parametrize(("kind", "unit", "size"), [("claude-code", 64, 64), ("tokens", 1, 4)])
def test_the_device_finds_what_it_finds_alone_and_tiers_only_add(kind: str, unit: int, size: int, policy: str) -> None:
    for seed in range(8):
        trace = sessions(seed, kind=kind, unit=unit)
        result = run(trace, size, layout(device=40 * unit, host=30 * unit, disk=30 * unit), policy)
        alone = simulate(trace, 40 * unit, best=ideal(trace, size), block_size=size, policy=policy)
        assert sum(result.found_tokens.values()) == round(result.hit_rate * trace.input_tokens)
        assert result.found_tokens["device"] >= alone.cached_tokens * (1 if unit > 1 else 0.95)
        assert result.hit_rate >= alone.hit_rate
        assert result.hit_rate <= result.ideal_hit_rate
        assert result.found_tokens["host"] > 0
        assert result.found_tokens["disk"] > 0


def test_two_tiers_find_about_as_much_as_one_of_their_sum() -> None:
    for seed in range(8):
        trace = sessions(seed)
        two = run(trace, 64, layout(device=40 * 64, host=40 * 64))
        one = simulate(trace, 80 * 64, best=ideal(trace, 64), block_size=64, policy="lru")
        assert two.hit_rate == pytest.approx(one.hit_rate, abs=0.05)
        assert two.hit_rate <= two.optimum_hit_rate


def test_every_tier_keeps_its_books() -> None:
    trace = sessions(3)
    service = TieredService(trace, layout(device=40 * 64, host=20 * 64, disk=20 * 64), 64, "agent")
    for _ in serve_all(trace, service.store, service.serve, None):
        service.store.check()
        check_cold(service.index)


def test_a_tier_slower_than_computing_is_left_alone() -> None:
    result = run(sessions(1), 64, layout(10**9, device=40 * 64, host=40 * 64))
    assert result.found_tokens["host"] == 0
    assert result.declined_tokens > 0
    assert result.ttft_s == pytest.approx(result.lru_ttft_s)


@pytest.mark.parametrize("text", ["host=1GiB", "device=1GiB", "device=1GiB,tape=2GiB", "device=1@fp3,host=1GiB"])
def test_tiers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_tiers(text, SHAPE)


def test_the_command_prints_hits_by_tier(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    ids = [list(range(8)), list(range(100, 108)), list(range(8))]
    file.write_text("".join(json.dumps({"timestamp": 0, "input_length": 4096, "hash_ids": x}) + "\n" for x in ids))
    options = ["--tiers", "device=5k@fp16,host=5k@fp16", "--model", CONFIG]
    done = CliRunner().invoke(app, ["simulate", str(file), *options, "--json", "-"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["runs"]
    assert result["found_tokens"]["host"] > 0
    assert result["lru_hit_rate"] < result["hit_rate"]
    shown = CliRunner().invoke(app, ["simulate", str(file), *options], env={"COLUMNS": "160"})
    assert "optimum" in shown.stdout
    refused = CliRunner().invoke(app, ["simulate", str(file), *options, "--capacity-tokens", "1M"])
    assert refused.exit_code == 2
