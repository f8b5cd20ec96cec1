"""Attention whose result for a token has the same bits whatever was cached and whatever shares the pass.

A token's context is cut at multiples of SEGMENT positions, counted from the start of its sequence. Over each segment
the kernel runs at one fixed number of keys, with a number of query rows at which rows do not influence each other, and
the segments' results are joined in their order. So neither the chunk that a token was computed in, nor the hit before
it, nor its neighbours choose an order of additions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from runtime.attention import cpu_kernel
from runtime.attention.interface import AttentionOptions
from runtime.errors import ModelRefused
from runtime.execution.batch import Row, StepPlan
from runtime.kv.kv_pool import LayerKV
from runtime.models.row_invariant import in_full_vectors

SEGMENT = 256
# Query rows of one kernel call come in multiples of this; the probe at load proves that they are then independent.
ROWS = 4
# A run of so many neighbouring segments is read in place; fewer are gathered with others.
MIN_VIEW = 2

Ints = NDArray[np.int64]


@dataclass
class _Unit:
    """Tokens (packed rows) at positions `at` that see something of a segment whose keys lie in these slots.

    in_place: whether the slots are neighbours. masked: whether the tokens see a part of the segment only. Tokens of
    several sequences meet where they share it.
    """

    segment: int
    slots: Ints
    in_place: bool
    masked: bool
    tokens: list[Ints]
    at: list[Ints]


@dataclass(frozen=True)
class SegmentBatch:
    """P segments that equally many tokens attend to, for one call of the kernel.

    begin: the first slot where the segments lie one behind the other. slots: int64 `[P * SEGMENT]` where they do not; a
    place behind the last written one repeats a written slot, and is masked. tokens: int64 `[P * n]`, packed rows.
    short: how many empty query rows fill the call up. mask: `[P, 1, n * group + short, SEGMENT]`, to be added to the
    scores, or None.
    """

    parts: int
    begin: int
    slots: torch.Tensor | None
    tokens: torch.Tensor
    short: int
    mask: torch.Tensor | None

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """`[P, kv_heads, SEGMENT, dim]` of a layer's keys or values."""
        if self.slots is None:
            flat = slots[self.begin : self.begin + self.parts * SEGMENT]
        else:
            flat = slots.index_select(0, self.slots)
        return flat.view(self.parts, SEGMENT, *flat.shape[1:]).transpose(1, 2)


class SegmentLayout:
    """Which tokens of a step attend to which segments under one window; built once a step.

    partials: int64 `[depth * T]`: for each rank, and in it for each token, which result is that of the token's segment
    of that rank (0 is the first that it sees), counted through the batches; the number behind the last is for none.
    """

    def __init__(self, plan: StepPlan, window: int | None, group: int, dtype: torch.dtype) -> None:
        self._window = window
        self._device = plan.device
        self._dtype = dtype
        self._group = group
        self._units: dict[tuple[bytes, bool], _Unit] = {}
        for row in plan.rows:
            self._add(row, plan.block_size)
        self.batches: list[SegmentBatch] = []
        self._made = 0
        self._ranks: list[tuple[Ints, Ints, Ints]] = []
        self._make_batches()
        self.depth = 1 + max(int(rank.max()) for rank, _, _ in self._ranks)
        partials = np.full((self.depth, plan.total), self._made, dtype=np.int64)
        for rank, token, result in self._ranks:
            partials[rank, token] = result
        self.partials = torch.from_numpy(partials.ravel()).to(self._device)

    def _first(self, position: int) -> int:
        """The first segment that a query at this position sees."""
        return 0 if self._window is None else max(0, position - self._window + 1) // SEGMENT

    def _add(self, row: Row, block_size: int) -> None:
        first, last = self._first(row.start), (row.kv_len - 1) // SEGMENT
        where = np.arange(first * SEGMENT, row.kv_len)
        flat = np.empty((last - first + 1) * SEGMENT, dtype=np.int64)
        flat[: len(where)] = row.table[where // block_size].astype(np.int64) * block_size + where % block_size
        flat[len(where) :] = flat[-SEGMENT]
        slots = flat.reshape(-1, SEGMENT)
        in_place = (np.diff(slots, axis=1) == 1).all(axis=1).tolist()
        window = self._window or row.kv_len
        for index, segment in enumerate(range(first, last + 1)):
            begin, end = segment * SEGMENT, (segment + 1) * SEGMENT
            low, high = max(row.start, begin), min(row.kv_len, end + window - 1)
            # The first to see all of it, and the first that no longer does; both lie in order where any does.
            full = min(max(low, end - 1), high)
            past = max(full, min(begin + window, high))
            for masked, runs in ((False, [(full, past)]), (True, [(low, full), (past, high)])):
                at = [np.arange(*run) for run in runs if run[0] < run[1]]
                if at:
                    key = slots[index].tobytes(), masked
                    unit = self._units.setdefault(key, _Unit(segment, slots[index], in_place[index], masked, [], []))
                    unit.tokens += [row.q_start - row.start + positions for positions in at]
                    unit.at += at

    def _make_batches(self) -> None:
        alike: dict[tuple[int, bool], list[_Unit]] = defaultdict(list)
        for unit in self._units.values():
            alike[sum(map(len, unit.tokens)), unit.masked].append(unit)
        for (size, _), units in alike.items():
            loose: list[_Unit] = []
            for run in _runs(units):
                if len(run) >= MIN_VIEW:
                    self._add_batch(size, run, in_place=True)
                else:
                    loose += run
            if loose:
                self._add_batch(size, loose, in_place=False)

    def _add_batch(self, size: int, units: list[_Unit], *, in_place: bool) -> None:
        tokens = np.stack([np.concatenate(unit.tokens) for unit in units])
        at = np.stack([np.concatenate(unit.at) for unit in units])
        segments = np.array([unit.segment for unit in units])[:, None]
        first = 0 if self._window is None else np.maximum(0, at - self._window + 1) // SEGMENT
        rank = segments - first + np.zeros_like(at)
        self._ranks.append((rank.ravel(), tokens.ravel(), self._made + np.arange(tokens.size)))
        self._made += tokens.size
        # The query heads of a KV head are just more rows of it.
        short = -size * self._group % ROWS
        mask = None
        if units[0].masked:
            past = segments[..., None] * SEGMENT + np.arange(SEGMENT)
            hidden = past > at[..., None]
            if self._window is not None:
                hidden |= past <= at[..., None] - self._window
            hidden = np.pad(np.repeat(hidden, self._group, axis=1), ((0, 0), (0, short), (0, 0)))[:, None]
            mask = torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))).to(self._device, self._dtype)
        slots = None if in_place else torch.from_numpy(np.concatenate([unit.slots for unit in units])).to(self._device)
        packed_rows = torch.from_numpy(tokens.ravel()).to(self._device)
        self.batches.append(SegmentBatch(len(units), int(units[0].slots[0]), slots, packed_rows, short, mask))


def _runs(units: list[_Unit]) -> list[list[_Unit]]:
    """The units, those together that lie one behind the other in the pool."""
    runs: list[list[_Unit]] = []
    # Where the next segment of the last run would begin; nowhere behind a scattered one.
    end = -1
    for unit in sorted(units, key=lambda unit: int(unit.slots[0])):
        begin = int(unit.slots[0])
        if unit.in_place and begin == end:
            runs[-1].append(unit)
        else:
            runs.append([unit])
        end = begin + SEGMENT if unit.in_place else -1
    return runs


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
        outs, lses = zip(*(_attend(query, kv, batch, options.scale) for batch in layout.batches), strict=True)
        nothing = outs[0].new_zeros(1, *outs[0].shape[1:]), lses[0].new_full((1, lses[0].shape[1]), float("-inf"))
        out = torch.cat([*outs, nothing[0]]).index_select(0, layout.partials)
        lse = torch.cat([*lses, nothing[1]]).index_select(0, layout.partials)
        shape = (layout.depth, *query.shape[:2])
        joined, joined_lse = _join(out.view(*shape, -1), lse.view(shape), options.sinks)
        return joined.to(query.dtype), joined_lse if options.want_lse else None


def _attend(query: torch.Tensor, kv: LayerKV, batch: SegmentBatch, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[P * n, heads, dim]` and log-sum-exp `[P * n, heads]`, in float32."""
    _, heads, dim = query.shape
    shape = (batch.parts, -1, kv.kv_heads, heads // kv.kv_heads)
    rows = query.index_select(0, batch.tokens).view(*shape, dim).transpose(1, 2).flatten(2, 3)
    count = rows.shape[2]
    if batch.short:
        rows = functional.pad(rows, (0, 0, 0, batch.short))
    keys, values = batch.read(kv.key_slots).to(query.dtype), batch.read(kv.value_slots).to(query.dtype)
    out, lse = cpu_kernel.flash(rows, keys, values, scale, mask=batch.mask)
    of_rows = (batch.parts, kv.kv_heads, -1, heads // kv.kv_heads)
    out = out[:, :, :count].reshape(*of_rows, dim).transpose(1, 2).reshape(-1, heads, dim)
    return out.float(), lse[:, :, :count].reshape(of_rows).transpose(1, 2).reshape(-1, heads)


def _join(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of the segments along axis 0, added one after the other: one that a token lacks adds zero."""
    peak = lse.amax(0)
    if sinks is not None:
        peak = torch.maximum(peak, sinks.float())
    weights = in_full_vectors(torch.exp, lse - peak)
    out *= weights[..., None]
    total, joined = weights[0].clone(), out[0]
    for segment in range(1, len(out)):
        total += weights[segment]
        joined += out[segment]
    if sinks is not None:
        total += in_full_vectors(torch.exp, sinks.float() - peak)
    return joined / total[..., None], peak + in_full_vectors(torch.log, total)
