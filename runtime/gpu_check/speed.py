"""How fast: prefill, decode by batch and context, and the time to the first token, cold and warm."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from radix import Namespace
from runtime.attention.choice import CANDIDATES
from runtime.engine import Engine
from runtime.engine_config import EngineConfig
from runtime.events import FinishedEvent
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.logit_rows import LogitRows
from runtime.execution.model_runner import ModelRunner
from runtime.gpu_check.correctness import branch_items, decode_items
from runtime.gpu_check.peaks import Peaks, best_seconds
from runtime.gpu_check.plan import CheckPlan
from runtime.gpu_check.shapes import Costs
from runtime.kv.gpu_memory import free_gpu_memory
from runtime.models.loaded_model import LoadedModel
from runtime.request import GenerateJob
from runtime.run_job import run_job
from runtime.sampling.sampling_params import SamplingParams


@dataclass(frozen=True)
class PrefillReport:
    """A prompt in chunks; share: of the device's matrix products."""

    tokens: int
    tokens_per_s: float
    share: float


@dataclass(frozen=True)
class DecodeReport:
    """Milliseconds of a step, from laying it out to the tokens on the host, as the runner runs it and launched kernel
    by kernel; share: of the device's memory bandwidth at the first. None where it does not fit into the pool."""

    batch: int
    context: int
    step_ms: float | None
    ordinary_ms: float | None
    share: float | None


@dataclass(frozen=True)
class SharedReport:
    """Milliseconds of a decode step of `batch` rows that share all of their context but the last tokens: as the runner
    runs it, and with what they share attended once. None where no back end does that here."""

    batch: int
    context: int
    step_ms: float
    shared_ms: float | None


@dataclass(frozen=True)
class FirstTokenReport:
    """Seconds to the first token through the engine: a prompt that is new, and again with other tokens at its end."""

    tokens: int
    cold_s: float
    warm_s: float
    cached_tokens: int


def measure_prefill(runner: ModelRunner, costs: Costs, peaks: Peaks, plan: CheckPlan) -> list[PrefillReport]:
    """Prompts in chunks, one at a time."""
    found = []
    for length in plan.prompts:
        blocks = -(-length // runner.pool.block_size)
        if blocks > runner.num_blocks:
            continue
        table = np.arange(blocks, dtype=np.int32)
        tokens = np.ones(length, np.int32)

        def prefill(table: np.ndarray = table, tokens: np.ndarray = tokens) -> None:
            for start in range(0, len(tokens), plan.chunk):
                chunk = tokens[start : start + plan.chunk]
                runner.forward([BatchItem(chunk, start, table, int(start + len(chunk) == len(tokens)))])

        seconds = best_seconds(prefill, runner.pool.device, times=2)
        share = costs.prefill_flops(length) / seconds / peaks.flops_per_s
        found.append(PrefillReport(length, length / seconds, share))
    return found


def measure_decode(
    runner: ModelRunner, costs: Costs, peaks: Peaks, plan: CheckPlan, deadline: float
) -> list[DecodeReport]:
    """Every batch size at every context that fits, until the deadline (of time.monotonic)."""
    found = []
    for context in plan.contexts:
        for batch in plan.batches:
            fits = batch * (context // runner.pool.block_size + 1) <= runner.num_blocks
            if not fits or time.monotonic() > deadline:
                found.append(DecodeReport(batch, context, None, None, None))
                continue
            items = decode_items(runner, batch, context)
            step = _step_seconds(runner, items, plan.steps, recorded=True)
            ordinary = _step_seconds(runner, items, plan.steps, recorded=False)
            moved = costs.step_bytes(batch * context, runner.pool.bytes_per_token)
            found.append(DecodeReport(batch, context, 1000 * step, 1000 * ordinary, moved / step / peaks.bytes_per_s))
    return found


def measure_shared(runner: ModelRunner, plan: CheckPlan) -> list[SharedReport]:
    """Branches of one trunk at every context."""
    name = f"{runner.backend.name}+shared"
    own = runner.backend
    batch = max(size for size in plan.batches if size <= plan.attention_batch)
    found = []
    for context in plan.contexts:
        items = branch_items(runner, batch, context)
        if items is None:
            continue
        step = 1000 * _step_seconds(runner, items, plan.steps, recorded=True)
        shared = None
        if name in CANDIDATES:
            runner.backend = CANDIDATES[name].make()
            shared = 1000 * _step_seconds(runner, items, plan.steps, recorded=False)
            runner.backend = own
        found.append(SharedReport(batch, context, step, shared))
    return found


def _step_seconds(runner: ModelRunner, items: list[BatchItem], steps: int, *, recorded: bool) -> float:
    size, device = runner.pool.block_size, runner.pool.device

    def step() -> None:
        plan = runner.prepare(items) if recorded else StepPlan(items, size, runner.num_blocks, device)
        LogitRows.of(runner.run(plan, plan.logit_rows))

    for _ in range(2):
        step()
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def measure_first_tokens(loaded: LoadedModel, plan: CheckPlan, block_size: int) -> list[FirstTokenReport]:
    """Each prompt cold, and again with its last tokens changed, through an engine of its own."""
    tokens = 2 * max(plan.prompts)
    engine = Engine(
        loaded, EngineConfig(num_blocks=tokens // block_size, block_size=block_size, max_batch_tokens=plan.chunk)
    )
    engine.start()
    random = np.random.default_rng(9)
    vocab = loaded.info.vocab_size
    try:
        # The first request compiles and warms up.
        _ask(engine, loaded, random.integers(0, vocab, plan.prompts[0]))
        found = []
        for length in plan.prompts:
            prompt = random.integers(0, vocab, length)
            cold = _ask(engine, loaded, prompt)
            prompt = np.concatenate([prompt[: -plan.new_tokens], random.integers(0, vocab, plan.new_tokens)])
            warm = _ask(engine, loaded, prompt)
            found.append(FirstTokenReport(length, cold.timing.ttft_s, warm.timing.ttft_s, warm.usage.cached_tokens))
        return found
    finally:
        engine.shutdown(0)


def _ask(engine: Engine, loaded: LoadedModel, prompt: np.ndarray) -> FinishedEvent:
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    return run_job(engine, GenerateJob("check", prompt.astype(np.int32), Namespace(loaded.info.fingerprint), sampling))


def pool_tokens(loaded: LoadedModel, plan: CheckPlan) -> int:
    """Tokens that the measured pool has: what the largest case wants, or what fits into the device's free memory."""
    wanted = max(plan.batches) * (max(plan.contexts) + 256)
    if loaded.model.device.type != "cuda":
        return wanted
    return min(wanted, int(0.8 * free_gpu_memory(loaded.model.device)) // loaded.info.kv_bytes_per_token)
