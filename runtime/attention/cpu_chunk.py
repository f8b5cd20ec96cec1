"""Prefill attention on CPU: a chunk over its cached prefix, or over the window before it."""

from __future__ import annotations

import torch

from runtime.attention.cpu_kernel import flash, join_two
from runtime.batch import Row, StepPlan
from runtime.kv_pool import LayerKV

# Below this many queries one masked call beats two calls and a join.
MIN_SPLIT_CHUNK = 32
# Queries that attend under one window mask at a time: bounds the mask, whatever the chunk.
WINDOW_QUERIES = 256


def chunk_attention(
    query: torch.Tensor, kv: LayerKV, plan: StepPlan, index: int, window: int | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[T, heads, dim]` and log-sum-exp `[T, heads]` of the row `index`, whose queries are `[T, heads, dim]`."""
    row = plan.rows[index]
    kv_heads = kv.kv_heads
    # Each KV head is a batch entry and its query heads the heads: keys are broadcast by stride, not copied.
    grouped = query.view(row.q_len, kv_heads, -1, query.shape[-1]).permute(1, 2, 0, 3)
    if window is not None and row.kv_len > window:
        pieces = [
            _masked(grouped, kv, plan, index, at, min(at + WINDOW_QUERIES, row.q_len), window, scale)
            for at in range(0, row.q_len, WINDOW_QUERIES)
        ]
        out = torch.cat([piece[0] for piece in pieces], dim=2)
        lse = torch.cat([piece[1] for piece in pieces], dim=2)
    elif row.start and row.q_len < MIN_SPLIT_CHUNK:
        out, lse = _masked(grouped, kv, plan, index, 0, row.q_len, None, scale)
    else:
        out, lse = _causal(grouped, kv, plan, index, scale)
        if row.start:
            out, lse = join_two(out, lse, *_prefix(grouped, kv, plan, index, scale))
    return out.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype), lse.permute(2, 0, 1).flatten(1, 2)


def _read(
    kv: LayerKV, plan: StepPlan, index: int, low: int, high: int, query: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[kv_heads, high - low, dim]` of positions `low : high`."""
    slots = plan.slots(index, low, high)
    keys = slots.read(kv.keys, kv.key_slots).to(query.dtype)
    values = slots.read(kv.values, kv.value_slots).to(query.dtype)
    return keys.transpose(0, 1), values.transpose(0, 1)


def _over_group(tensor: torch.Tensor, group: int) -> torch.Tensor:
    return tensor[:, None].expand(-1, group, -1, -1)


def _causal(
    grouped: torch.Tensor, kv: LayerKV, plan: StepPlan, index: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    row = plan.rows[index]
    keys, values = _read(kv, plan, index, row.start, row.kv_len, grouped)
    group = grouped.shape[1]
    return flash(grouped, _over_group(keys, group), _over_group(values, group), scale, causal=True)


def _prefix(
    grouped: torch.Tensor, kv: LayerKV, plan: StepPlan, index: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chunk over everything before it: no mask, so the query heads of a KV head are just more queries."""
    row = plan.rows[index]
    keys, values = _read(kv, plan, index, 0, row.start, grouped)
    kv_heads, group, count, dim = grouped.shape
    queries = grouped.reshape(1, kv_heads, group * count, dim)
    out, lse = flash(queries, keys[None], values[None], scale)
    return out.reshape(kv_heads, group, count, dim), lse.reshape(kv_heads, group, count)


def _masked(
    grouped: torch.Tensor,
    kv: LayerKV,
    plan: StepPlan,
    index: int,
    begin: int,
    end: int,
    window: int | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries `begin : end` of the chunk under an explicit mask over the positions that any of them sees."""
    row = plan.rows[index]
    first, last = row.start + begin, row.start + end
    low = 0 if window is None else max(0, first - window + 1)
    mask = plan.derived(
        ("mask", index, begin, window, grouped.dtype), lambda: _mask(row, first, last, low, window, grouped)
    )
    keys, values = _read(kv, plan, index, low, last, grouped)
    group = grouped.shape[1]
    return flash(grouped[:, :, begin:end], _over_group(keys, group), _over_group(values, group), scale, mask=mask)


def _mask(row: Row, first: int, last: int, low: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    at = torch.arange(first, last, device=like.device)[:, None]
    past = torch.arange(low, last, device=like.device)[None, :]
    hidden = past > at
    if window is not None:
        hidden |= past <= at - window
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden, float("-inf"))[None, None]
