"""Prefill attention on CPU: chunks over their cached prefixes, or over the window before them.

A chunk meets its prefix without a mask, and itself a slice of queries at a time: what comes before the slice is one
more prefix, so that a causal mask is needed only within slices. A beginning that several chunks share (branches of one
trunk) is attended once with the queries of all of them. The partial results meet by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime.attention.cpu_kernel import flash, join_two
from runtime.execution.batch import Row, StepPlan, common_blocks
from runtime.kv.kv_pool import LayerKV

# Queries that attend to each other under one mask; those before them in the chunk are a prefix.
CAUSAL_QUERIES = 128
# Queries that attend under one window mask at a time: bounds the mask, whatever the chunk.
WINDOW_QUERIES = 256
# A common beginning of fewer tokens than this is not worth a kernel call of its own.
MIN_SHARED = 128


@dataclass(frozen=True)
class Prefix:
    """Positions `low : high`, attended by the chunks of the plan's rows `members` alike: they have the same blocks."""

    members: tuple[int, ...]
    low: int
    high: int


def chunk_attention(
    query: torch.Tensor, kv: LayerKV, plan: StepPlan, indices: Sequence[int], window: int | None, scale: float
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Output `[T, heads, dim]` and log-sum-exp `[T, heads]` of each of the rows `indices`, in their order.

    query is the whole packed batch, `[T, heads, dim]`.
    """
    if window is not None and max(plan.rows[index].kv_len for index in indices) > window:
        return [_in_window(query, kv, plan, index, window, scale) for index in indices]
    found = {index: _causal(query, kv, plan, index, scale) for index in indices}
    for prefix in plan.derived(("prefixes", *indices), lambda: _prefixes(plan, indices)):
        lengths = [plan.rows[index].q_len for index in prefix.members]
        grouped = torch.cat([_grouped(query, kv, plan.rows[index]) for index in prefix.members], dim=2)
        outs, lses = _over(grouped, kv, plan, prefix.members[0], prefix.low, prefix.high, scale)
        for index, out, lse in zip(
            prefix.members, torch.split(outs, lengths, dim=2), torch.split(lses, lengths, dim=2), strict=True
        ):
            found[index] = join_two(*found[index], out, lse)
    return [_packed(*found[index], query) for index in indices]


def _prefixes(plan: StepPlan, indices: Sequence[int]) -> list[Prefix]:
    """Every chunk's prefix, the part that chunks have in common taken once for those that begin with one block."""
    families: dict[int, list[int]] = {}
    for index in indices:
        if plan.rows[index].start:
            families.setdefault(int(plan.rows[index].table[0]), []).append(index)
    found: list[Prefix] = []
    for members in families.values():
        shared = 0
        if len(members) > 1:
            shared = common_blocks([plan.rows[index] for index in members], plan.block_size) * plan.block_size
        if shared >= MIN_SHARED:
            found.append(Prefix(tuple(members), 0, shared))
        else:
            shared = 0
        ends = {index: plan.rows[index].start for index in members}
        found += [Prefix((index,), shared, end) for index, end in ends.items() if end > shared]
    return found


def _grouped(query: torch.Tensor, kv: LayerKV, row: Row) -> torch.Tensor:
    """A row's queries as `[kv_heads, group, T, dim]`."""
    mine = query[row.q_start : row.q_start + row.q_len]
    return mine.view(row.q_len, kv.kv_heads, -1, query.shape[-1]).permute(1, 2, 0, 3)


def _packed(out: torch.Tensor, lse: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return out.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype), lse.permute(2, 0, 1).flatten(1, 2)


def _read(
    kv: LayerKV, plan: StepPlan, index: int, low: int, high: int, query: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[kv_heads, high - low, dim]` of positions `low : high`."""
    slots = plan.slots(index, low, high)
    keys = slots.read(kv.keys, kv.key_slots).to(query.dtype)
    values = slots.read(kv.values, kv.value_slots).to(query.dtype)
    return keys.transpose(0, 1), values.transpose(0, 1)


def _causal(
    query: torch.Tensor, kv: LayerKV, plan: StepPlan, index: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk over itself."""
    row = plan.rows[index]
    grouped = _grouped(query, kv, row)
    outs, lses = [], []
    for at in range(0, row.q_len, CAUSAL_QUERIES):
        slice_ = grouped[:, :, at : at + CAUSAL_QUERIES]
        begin, end = row.start + at, row.start + at + slice_.shape[2]
        out, lse = _over(slice_, kv, plan, index, begin, end, scale, _causal_mask(plan, slice_))
        if at:
            out, lse = join_two(out, lse, *_over(slice_, kv, plan, index, row.start, begin, scale))
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)


def _causal_mask(plan: StepPlan, grouped: torch.Tensor) -> torch.Tensor:
    _, group, count, _ = grouped.shape

    def build() -> torch.Tensor:
        hidden = torch.full((count, count), float("-inf"), dtype=grouped.dtype, device=grouped.device).triu_(1)
        return hidden.repeat(group, 1)[None, None]

    return plan.derived(("causal", group, count, grouped.dtype), build)


def _over(
    grouped: torch.Tensor,
    kv: LayerKV,
    plan: StepPlan,
    index: int,
    low: int,
    high: int,
    scale: float,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries `[kv_heads, group, T, dim]` over positions `low : high` of a row.

    The query heads of a KV head are just more queries; mask is `[1, 1, group * T, high - low]`.
    """
    keys, values = _read(kv, plan, index, low, high, grouped)
    kv_heads, group, count, dim = grouped.shape
    queries = grouped.reshape(1, kv_heads, group * count, dim)
    out, lse = flash(queries, keys[None], values[None], scale, mask=mask)
    return out.reshape(kv_heads, group, count, dim), lse.reshape(kv_heads, group, count)


def _in_window(
    query: torch.Tensor, kv: LayerKV, plan: StepPlan, index: int, window: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    row = plan.rows[index]
    grouped = _grouped(query, kv, row)
    pieces = [
        _masked(grouped, kv, plan, index, at, min(at + WINDOW_QUERIES, row.q_len), window, scale)
        for at in range(0, row.q_len, WINDOW_QUERIES)
    ]
    return _packed(torch.cat([piece[0] for piece in pieces], 2), torch.cat([piece[1] for piece in pieces], 2), query)


def _masked(
    grouped: torch.Tensor, kv: LayerKV, plan: StepPlan, index: int, begin: int, end: int, window: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries `begin : end` of the chunk under an explicit mask over the positions that any of them sees."""
    row = plan.rows[index]
    first, last = row.start + begin, row.start + end
    low = max(0, first - window + 1)
    mask = plan.derived(
        ("mask", index, begin, window, grouped.dtype), lambda: _window_mask(first, last, low, window, grouped)
    )
    return _over(grouped[:, :, begin:end], kv, plan, index, low, last, scale, mask)


def _window_mask(first: int, last: int, low: int, window: int, grouped: torch.Tensor) -> torch.Tensor:
    at = torch.arange(first, last, device=grouped.device)[:, None]
    past = torch.arange(low, last, device=grouped.device)[None, :]
    hidden = (past > at) | (past <= at - window)
    mask = torch.zeros(hidden.shape, dtype=grouped.dtype, device=grouped.device)
    return mask.masked_fill_(hidden, float("-inf")).repeat(grouped.shape[1], 1)[None, None]
