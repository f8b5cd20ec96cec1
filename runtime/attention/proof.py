"""A small step that a back end answers before it serves, held against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from runtime.attention.interface import AttentionBackend, AttentionOptions
from runtime.attention.needs import Needs
from runtime.attention.reference import ReferenceAttention
from runtime.execution.batch import BatchItem, StepPlan
from runtime.kv.kv_pool import KVPool, LayerKV
from runtime.kv.precision import LayerShape

# Largest distance of an output or a log-sum-exp from the reference's, for numbers of about one.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Rows as (cached, new). Decode, a fresh chunk, a chunk behind a prefix, a first token; decode alone; branches.
MIXED = ((299, 1), (0, 40), (70, 25), (0, 1))
DECODE = ((299, 1), (0, 1), (33, 1))
BRANCHES = ((1350, 1), (1290, 3), (1301, 1))
TRUNK_TOKENS = 1280
_KV_HEADS, _GROUP = 2, 4
_WINDOW, _SOFTCAP = 29, 3.0


@dataclass(frozen=True)
class Trial:
    """Queries float `[T, heads, dim]` and a pool in which only the slots of the plan's rows are written."""

    query: torch.Tensor
    kv: LayerKV
    plan: StepPlan
    options: AttentionOptions

    def error(self, backend: AttentionBackend) -> float:
        """The largest distance from the reference, NaN where either is; the log-sum-exp counts where it is returned."""
        wanted, wanted_lse = ReferenceAttention()(self.query, self.kv, self.plan, self.options)
        out, lse = backend(self.query, self.kv, self.plan, self.options)
        worst = (out.float() - wanted.float()).abs().max()
        if lse is not None and wanted_lse is not None:
            worst = torch.maximum(worst, (lse - wanted_lse).abs().max())
        return float(worst)


def trial(
    needs: Needs,
    dims: tuple[int, int],
    rows: tuple[tuple[int, int], ...],
    options: AttentionOptions,
    *,
    kv_heads: int = _KV_HEADS,
    group: int = _GROUP,
) -> Trial:
    """Random queries and KV of these rows `(cached, new)`, in scattered blocks of a pool of NaN.

    BRANCHES have the blocks of their first TRUNK_TOKENS in common.
    """
    size = needs.block_size
    counts = [-(-(cached + new) // size) for cached, new in rows]
    shape = LayerShape(0, kv_heads, *dims)
    total = sum(counts) + 1
    pool = KVPool([shape], total, size, dtype=needs.kv_format, device=needs.device, fill=float("nan"))
    # Block 0 belongs to nobody: an index that was left at zero reads NaN.
    order = np.random.default_rng(3).permutation(np.arange(1, total)).astype(np.int32)
    tables = np.split(order, np.cumsum(counts)[:-1])
    if rows == BRANCHES:
        trunk = tables[0][: TRUNK_TOKENS // size]
        tables = [np.concatenate([trunk, table[len(trunk) :]]) for table in tables]
    items = [
        BatchItem(np.zeros(new, np.int32), cached, table) for (cached, new), table in zip(rows, tables, strict=True)
    ]
    plan = StepPlan(items, size, total, pool.device)
    random = torch.Generator(device=pool.device).manual_seed(3)
    kv = pool.layers[0]
    for row in plan.rows:
        where = np.arange(row.kv_len)
        slots = plan.to_device(row.table[where // size].astype(np.int64) * size + where % size)
        for tensor in (kv.key_slots, kv.value_slots):
            numbers = torch.randn(len(slots), *tensor.shape[1:], generator=random, device=pool.device)
            tensor[slots] = numbers.to(tensor.dtype)
    query = torch.randn(plan.total, kv_heads * group, dims[0], generator=random, device=pool.device)
    return Trial(query.to(needs.dtype), kv, plan, options)


def disproof(make: Callable[[], AttentionBackend], needs: Needs) -> str | None:
    """Why a back end must not serve, by its answers on the model's device: what it raised or how far it is off."""
    try:
        backend = make()
        with torch.inference_mode():
            for one in _trials(needs):
                error = one.error(backend)
                if not error <= TOLERANCE.get(needs.dtype, 1e-4):
                    return f"its answer differs from the reference by {error:.2g}"
    except Exception as error:
        return f"failed on a small step: {type(error).__name__}: {error}"
    return None


def _trials(needs: Needs) -> Iterator[Trial]:
    sinks = torch.linspace(-1, 2, _KV_HEADS * _GROUP, device=needs.device) if needs.sinks else None
    softcap = _SOFTCAP if needs.softcap else None
    for dims in sorted(needs.dims):
        for rows in (MIXED, DECODE, BRANCHES):
            for window in (None, _WINDOW) if needs.window else (None,):
                scale = dims[0] ** -0.5
                yield trial(needs, dims, rows, AttentionOptions(scale, window, softcap, sinks, want_lse=True))
