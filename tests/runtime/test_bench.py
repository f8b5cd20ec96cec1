"""The bench runs the real engine: what it reports, and that it measures what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from radix import Namespace, PrefixStore, common_prefix
from runtime.bench import Bench, BenchConfig, run
from runtime.bench_load import Prompts, fill, remember
from runtime.cli import app
from runtime.models.loaded_model import LoadedModel
from runtime.monitoring.step_clock import FORWARD, PARTS

SMALL = BenchConfig(pool_tokens=4_096, context=96, batches=(1, 8), steps=5, chunk=64, prefills=2)


@pytest.mark.parametrize("host_bytes", [0, 2**21])
def test_the_parts_of_the_host_add_up(host_bytes: int, tiny: LoadedModel) -> None:
    told: list[float] = []
    result = run(tiny, replace(SMALL, host_bytes=host_bytes), lambda share, step: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1
    assert set(result["host_parts_ms"]) == set(PARTS) - {FORWARD}
    assert sum(result["host_parts_ms"].values()) == pytest.approx(result["host_ms_per_step"], abs=0.01)
    # A step that one of them has to wait for, behind a copy to a tier, is not of the whole batch.
    assert result["host_steps"] == 2 * SMALL.steps or host_bytes
    assert result["host_steps"] > 0
    for times in result["decode_ms"].values():
        assert list(times) == ["1", "8"]
        assert min(times.values()) > 0
    assert min(result["prefill_tokens_per_s"].values()) > 0
    assert result["kv_dtype"] == "fp32"
    json.dumps(result)


def test_decode_steps_compute_one_token_of_each_context_and_prefill_one_chunk(tiny: LoadedModel) -> None:
    bench = Bench(tiny, SMALL)
    with bench.running() as readers:
        before = bench.engine.counters.computed_tokens
        steps = bench.decode(readers, bench.contexts(8, shared=True), 3)
        assert [(step.sequences, step.tokens) for step in steps] == [(8, 8)] * 3
        assert bench.engine.counters.computed_tokens - before == 8, "the contexts were cached"
        prefix = bench.contexts(1, shared=False)[0]
        assert bench.prefill(readers, prefix).tokens == SMALL.chunk
        assert bench.engine.counters.computed_tokens - before == 8 + SMALL.chunk
        assert bench.engine.call(lambda store: store.free_blocks).result() < bench.engine.config.num_blocks // 10


def test_shared_contexts_share_all_but_their_tails(tiny: LoadedModel) -> None:
    first, second = Bench(tiny, SMALL).contexts(2, shared=True)
    assert len(first) == len(second) == SMALL.context
    assert common_prefix(first, second) == SMALL.context // 2
    first, second = Bench(tiny, SMALL).contexts(2, shared=False)
    assert common_prefix(first, second) < 4


@pytest.mark.parametrize("blocks", [256, 4096])
def test_the_pool_is_full_of_histories(blocks: int) -> None:
    store = PrefixStore(blocks, 16)
    prompts, namespace = Prompts(1000), Namespace("x")
    fill(store, prompts, namespace)
    assert store.free_blocks < blocks // 20
    assert store.stats().nodes > 20
    tokens = prompts.tokens(100)
    remember(store, tokens, namespace, prompt=60)
    assert store.match(tokens, namespace) == 100
    assert store.stats().open_sequences == 0
    store.check()


def test_json_goes_to_stdout_alone(tiny_model: Path) -> None:
    flags = ["--pool", "16k", "--context", "64", "--batches", "8", "--steps", "3", "--json", "-"]
    ran = CliRunner().invoke(app, ["bench", "--model", str(tiny_model), *flags])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["decode_ms"]["shared"].keys() == {"8"}


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--pool", "1k"], "need 68,5"),
        (["--batches", "1,x"], "--batches"),
        (["--model", "nonesuch"], "nonesuch"),
        (["--json", "/no/such/folder/x.json"], "does not exist"),
    ],
)
def test_what_cannot_run_is_refused_by_name(flags: list[str], word: str) -> None:
    ran = CliRunner().invoke(app, ["bench", *flags], env={"COLUMNS": "200"})
    assert ran.exit_code == 2
    assert word in ran.output
