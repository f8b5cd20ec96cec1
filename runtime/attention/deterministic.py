"""Attention whose result for a token has the same bits whatever was cached and whatever shares the pass.

A token's context is cut at multiples of SEGMENT positions, counted from the start of its sequence. Over each segment
the kernel runs at one fixed number of keys, with a number of query rows at which rows do not influence each other, and
the segments' results are joined in their order. So neither the chunk that a token was computed in, nor the hit before
it, nor its neighbours choose an order of additions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.attention import cpu_kernel
from runtime.attention.interface import AttentionOptions
from runtime.batch import Row, StepPlan
from runtime.errors import ModelRefused
from runtime.kv_pool import LayerKV
from runtime.row_invariant import in_full_vectors

SEGMENT = 256
# Query rows of one kernel call come in multiples of this; the probe at load proves that they are then independent.
ROWS = 4


@dataclass(frozen=True)
class SegmentBatch:
    """Segments that equally many tokens attend to, for one call of the kernel.

    slots: int64 `[P * SEGMENT]`; a place behind the last written one repeats a written slot, and is masked.
    tokens: int64 `[P, n]`, packed rows; a token that only fills up the row count repeats another.
    mask: `[P, 1, n, SEGMENT]` to be added to the scores, or None where every token sees the whole segment.
    kept, rank, token: int64 `[K]`, which of the P * n results count, and for each the place of the segment among those
    that its token sees, and the token.
    """

    slots: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor | None
    kept: torch.Tensor
    rank: torch.Tensor
    token: torch.Tensor


class SegmentLayout:
    """Which tokens of a step attend to which segments under one window; built once a step."""

    def __init__(self, plan: StepPlan, window: int | None, group: int, dtype: torch.dtype) -> None:
        self._window = window
        self._step = ROWS // math.gcd(group, ROWS)
        self._dtype = dtype
        # Keyed by slots and by whether a mask is needed: (packed rows, positions, segment).
        self._units: dict[tuple[bytes, bool], tuple[list[NDArray[np.int64]], list[NDArray[np.int64]], int]] = {}
        for row in plan.rows:
            for segment in range(self._first(row.start), (row.kv_len - 1) // SEGMENT + 1):
                self._add(row, segment, plan.block_size)
        self.depth = 1
        self.batches = list(self._batches(plan.device))

    def _first(self, position: int) -> int:
        """The first segment that a query at this position sees."""
        return 0 if self._window is None else max(0, position - self._window + 1) // SEGMENT

    def _add(self, row: Row, segment: int, block_size: int) -> None:
        begin, end = segment * SEGMENT, (segment + 1) * SEGMENT
        where = np.arange(begin, min(end, row.kv_len))
        slots = np.full(SEGMENT, row.table[begin // block_size].astype(np.int64) * block_size + begin % block_size)
        slots[: len(where)] = row.table[where // block_size].astype(np.int64) * block_size + where % block_size
        window = self._window or row.kv_len
        at = np.arange(max(row.start, begin), min(row.kv_len, end + window - 1))
        whole = (at >= end - 1) & (at < begin + window)
        for masked in (False, True):
            seeing = at[whole != masked]
            if len(seeing):
                unit = self._units.setdefault((slots.tobytes(), masked), ([], [], segment))
                unit[0].append(row.q_start + seeing - row.start)
                unit[1].append(seeing)

    def _batches(self, device: torch.device) -> Iterator[SegmentBatch]:
        by_size: dict[tuple[int, bool], list[tuple[bytes, NDArray[np.int64], NDArray[np.int64], int]]]
        by_size = defaultdict(list)
        for (slots, masked), (tokens, positions, segment) in self._units.items():
            packed, at = np.concatenate(tokens), np.concatenate(positions)
            by_size[-(-len(packed) // self._step) * self._step, masked].append((slots, packed, at, segment))
        for (size, masked), units in by_size.items():
            yield self._batch(size, masked, units, device)

    def _batch(
        self,
        size: int,
        masked: bool,
        units: list[tuple[bytes, NDArray[np.int64], NDArray[np.int64], int]],
        device: torch.device,
    ) -> SegmentBatch:
        slots = np.concatenate([np.frombuffer(unit[0], dtype=np.int64) for unit in units])
        tokens = np.stack([np.pad(unit[1], (0, size - len(unit[1])), mode="edge") for unit in units])
        kept = np.concatenate([index * size + np.arange(len(unit[1])) for index, unit in enumerate(units)])
        ranks = [unit[3] - np.array([self._first(p) for p in unit[2].tolist()]) for unit in units]
        rank = np.concatenate(ranks)
        self.depth = max(self.depth, int(rank.max()) + 1)
        mask = None
        if masked:
            at = np.stack([np.pad(unit[2], (0, size - len(unit[2])), mode="edge") for unit in units])[..., None]
            past = np.array([unit[3] for unit in units])[:, None, None] * SEGMENT + np.arange(SEGMENT)
            hidden = past > at
            if self._window is not None:
                hidden |= past <= at - self._window
            mask = torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))).to(device, self._dtype)
        return SegmentBatch(
            slots=torch.from_numpy(slots).to(device),
            tokens=torch.from_numpy(tokens).to(device),
            mask=mask[:, None] if mask is not None else None,
            kept=torch.from_numpy(kept).to(device),
            rank=torch.from_numpy(rank).to(device),
            token=torch.from_numpy(tokens.ravel()[kept]).to(device),
        )


class DeterministicAttention:
    """On CPU, without softcap, keys and values of one width; ModelRefused for the rest."""

    name = "deterministic"

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not cpu_kernel.supports(query, kv.values.shape[-1], options.softcap):
            raise ModelRefused(
                "deterministic attention runs on the CPU only, without softcap, and with keys as wide as values"
            )
        group = query.shape[1] // kv.kv_heads
        layout = plan.derived(
            ("segments", options.window, group, query.dtype),
            lambda: SegmentLayout(plan, options.window, group, query.dtype),
        )
        out = query.new_zeros(layout.depth, *query.shape, dtype=torch.float32)
        lse = query.new_full((layout.depth, *query.shape[:2]), float("-inf"), dtype=torch.float32)
        for batch in layout.batches:
            batch_out, batch_lse = _attend(query, kv, batch, options.scale)
            out[batch.rank, batch.token] = batch_out
            lse[batch.rank, batch.token] = batch_lse
        joined, joined_lse = _join(out, lse, options.sinks)
        return joined.to(query.dtype), joined_lse if options.want_lse else None


def _attend(query: torch.Tensor, kv: LayerKV, batch: SegmentBatch, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[K, heads, dim]` and log-sum-exp `[K, heads]` of the results that count, in float32."""
    _, heads, dim = query.shape
    parts, size = batch.tokens.shape
    group = heads // kv.kv_heads

    def read(slots: torch.Tensor) -> torch.Tensor:
        flat = slots.index_select(0, batch.slots).to(query.dtype)
        return flat.view(parts, SEGMENT, kv.kv_heads, dim).transpose(1, 2)

    rows = query.index_select(0, batch.tokens.flatten()).view(parts, size, kv.kv_heads, group, dim)
    # The query heads of a KV head are just more rows of it.
    rows = rows.transpose(1, 2).reshape(parts, kv.kv_heads, size * group, dim)
    mask = batch.mask
    if mask is not None and group > 1:
        mask = mask.repeat_interleave(group, dim=2)
    out, lse = cpu_kernel.flash(rows, read(kv.key_slots), read(kv.value_slots), scale, mask=mask)
    out = out.reshape(parts, kv.kv_heads, size, group, dim).transpose(1, 2).reshape(parts * size, heads, dim)
    lse = lse.reshape(parts, kv.kv_heads, size, group).transpose(1, 2).reshape(parts * size, heads)
    if len(batch.kept) < parts * size:
        out, lse = out.index_select(0, batch.kept), lse.index_select(0, batch.kept)
    return out.float(), lse


def _join(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of the segments along axis 0, added one after the other: one that a token lacks adds zero."""
    peak = lse.amax(0)
    if sinks is not None:
        peak = torch.maximum(peak, sinks.float())
    weights = in_full_vectors(torch.exp, lse - peak)
    total, joined = weights[0].clone(), out[0] * weights[0, ..., None]
    for segment in range(1, len(out)):
        total += weights[segment]
        joined += out[segment] * weights[segment, ..., None]
    if sinks is not None:
        total += in_full_vectors(torch.exp, sinks.float() - peak)
    return joined / total[..., None], peak + in_full_vectors(torch.log, total)
