"""Right answers: every back end against the reference, a hit against a miss, recorded steps against ordinary ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from runtime.attention.choice import CANDIDATES
from runtime.attention.interface import AttentionOptions
from runtime.attention.needs import Needs
from runtime.attention.proof import BRANCHES, DECODE, MIXED, TOLERANCE, trial
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.execution.static_step import StaticStep
from runtime.gpu_check.peaks import best_seconds
from runtime.gpu_check.plan import CheckPlan

_WINDOW, _SOFTCAP = 29, 3.0
_HEADS, _GROUP = 4, 7
# Relative distance of logits that were computed in another order of additions.
LOGIT_TOLERANCE = {torch.float32: 1e-3}
HALF_LOGIT_TOLERANCE = 5e-2


@dataclass(frozen=True)
class BackendReport:
    """error: the largest distance from the reference over `trials`; None where it failed. notes: what it does not take.

    decode_ms, chunk_ms: of one layer alone.
    """

    name: str
    trials: int
    error: float | None
    limit: float
    notes: tuple[str, ...]
    decode_ms: float | None = None
    chunk_ms: float | None = None

    @property
    def passed(self) -> bool:
        return self.trials == 0 or (self.error is not None and self.error <= self.limit)


@dataclass(frozen=True)
class LogitReport:
    """Rows of logits computed in two ways: the largest relative distance, and how many likeliest tokens differ."""

    what: str
    rows: int
    error: float
    flips: int
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit


def check_backends(needs: Needs, plan: CheckPlan) -> list[BackendReport]:
    """Each back end over pages, rows and options that it says it takes, and its time alone on one layer."""
    return [_check_backend(name, needs, plan) for name in CANDIDATES]


def _check_backend(name: str, needs: Needs, plan: CheckPlan) -> BackendReport:
    candidate = CANDIDATES[name]
    limit = TOLERANCE.get(needs.dtype, 1e-4)
    errors: list[float] = []
    notes: dict[str, None] = {}
    for asked, options in _variants(needs, plan):
        obstacle = candidate.obstacle(asked)
        if obstacle is not None:
            notes[obstacle] = None
            continue
        try:
            backend = candidate.make()
            for rows in (MIXED, DECODE, BRANCHES):
                (dims,) = asked.dims
                with torch.inference_mode():
                    errors.append(trial(asked, dims, rows, options).error(backend))
        except Exception as error:
            notes[f"failed: {type(error).__name__}: {error}"] = None
            return BackendReport(name, len(errors) + 1, None, limit, tuple(notes))
    if not errors:
        return BackendReport(name, 0, None, limit, tuple(notes))
    worst = None if np.isnan(errors).any() else max(errors)
    speeds: tuple[float | None, float | None] = (None, None)
    try:
        speeds = _kernel_speeds(name, needs, plan)
    except torch.OutOfMemoryError:
        # The plain ones hold a chunk's scores in whole, beside a model that may leave little room.
        notes["not timed: too little memory"] = None
    return BackendReport(name, len(errors), worst, limit, tuple(notes), *speeds)


def _variants(needs: Needs, plan: CheckPlan) -> Iterator[tuple[Needs, AttentionOptions]]:
    sinks = torch.linspace(-1, 2, 8, device=needs.device)
    for block_size in plan.block_sizes:
        for dims in ((64, 64), (128, 128)):
            base = replace(needs, block_size=block_size, dims=frozenset({dims}))
            scale = dims[0] ** -0.5
            yield base, AttentionOptions(scale, want_lse=True)
            yield replace(base, window=True), AttentionOptions(scale, _WINDOW, want_lse=True)
            yield replace(base, softcap=True), AttentionOptions(scale, softcap=_SOFTCAP, want_lse=True)
            yield replace(base, sinks=True), AttentionOptions(scale, sinks=sinks, want_lse=True)


def _kernel_speeds(name: str, needs: Needs, plan: CheckPlan) -> tuple[float, float]:
    """Milliseconds of one layer: a decode step over separate contexts, and a chunk behind a prefix."""
    backend = CANDIDATES[name].make()
    found = []
    decode = ((plan.attention_kv - 1, 1),) * plan.attention_batch
    chunk = ((plan.attention_kv, plan.attention_chunk),)
    for rows in (decode, chunk):
        one = trial(needs, (128, 128), rows, AttentionOptions(128**-0.5), kv_heads=_HEADS, group=_GROUP)
        with torch.inference_mode():
            seconds = best_seconds(lambda one=one: backend(one.query, one.kv, one.plan, one.options), needs.device)  # type: ignore[misc]
        found.append(1000 * seconds)
    return found[0], found[1]


def check_hits(runner: ModelRunner, plan: CheckPlan) -> LogitReport:
    """The last tokens of a prompt behind a cached prefix, against the whole prompt in one pass."""
    length, kept = plan.prompts[0], plan.prompts[0] // 3
    tokens = _tokens(runner, length, 1)
    blocks = -(-length // runner.pool.block_size)
    order = np.random.default_rng(1).permutation(min(runner.num_blocks, 2 * blocks)).astype(np.int32)
    first, second = order[:blocks], order[blocks:]
    rows = min(16, length - kept)
    whole = runner.forward([BatchItem(tokens, 0, first, rows)])
    runner.forward([BatchItem(tokens[:kept], 0, second, 0)])
    hit = runner.forward([BatchItem(tokens[kept:], kept, second, rows)])
    return _compare("hit against miss", hit, whole, runner)


def fill_with_noise(runner: ModelRunner) -> None:
    """Give every slot of the pool numbers of its own: over equal ones attention to the wrong slot would go unseen."""
    with torch.inference_mode():
        for kv in runner.pool.layers.values():
            kv.keys.normal_()
            kv.values.normal_()


def check_graphs(runner: ModelRunner, plan: CheckPlan) -> list[LogitReport]:
    """Decode steps as the runner runs them, recorded where it has graphs, against ordinary ones."""
    found = []
    for batch in sorted({*plan.batches, 3}):
        context = min(plan.contexts[0], runner.num_blocks * runner.pool.block_size // batch - 1)
        items = decode_items(runner, batch, context)
        step = runner.prepare(items)
        got = runner.run(step, step.logit_rows).clone()
        ordinary = StepPlan(items, runner.pool.block_size, runner.num_blocks, runner.pool.device)
        how = "recorded" if isinstance(step, StaticStep) else "not recorded"
        wanted = runner.run(ordinary, ordinary.logit_rows)
        found.append(_compare(f"decode of {batch}, {how}, against ordinary", got, wanted, runner))
    return found


def decode_items(runner: ModelRunner, batch: int, context: int) -> list[BatchItem]:
    """One new token for each of `batch` sequences with blocks of their own and `context` cached tokens."""
    blocks = context // runner.pool.block_size + 1
    order = np.random.default_rng(batch).permutation(runner.num_blocks)[: batch * blocks].astype(np.int32)
    tokens = _tokens(runner, batch, 3)
    return [
        BatchItem(tokens[index : index + 1], context, table) for index, table in enumerate(order.reshape(batch, blocks))
    ]


def branch_items(runner: ModelRunner, batch: int, context: int) -> list[BatchItem] | None:
    """The same for branches that share all blocks but their last four; None when they do not fit into the pool."""
    own, blocks = 4, context // runner.pool.block_size + 1
    trunk = blocks - own
    if trunk < 1 or trunk + batch * own > runner.num_blocks:
        return None
    tokens = _tokens(runner, batch, 3)
    leaves = np.arange(trunk, trunk + batch * own).reshape(batch, own)
    return [
        BatchItem(tokens[index : index + 1], context, np.concatenate([np.arange(trunk), leaf]).astype(np.int32))
        for index, leaf in enumerate(leaves)
    ]


def _tokens(runner: ModelRunner, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, runner.loaded.info.vocab_size, count).astype(np.int32)


def _compare(what: str, got: torch.Tensor, wanted: torch.Tensor, runner: ModelRunner) -> LogitReport:
    errors = (got - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-6)
    flips = int((got.argmax(-1) != wanted.argmax(-1)).sum())
    limit = LOGIT_TOLERANCE.get(runner.loaded.model.dtype, HALF_LOGIT_TOLERANCE)
    return LogitReport(what, len(got), float(errors.max()), flips, limit)
