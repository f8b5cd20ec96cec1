"""Decode attention on CPU: the KV of all decoding sequences cut into segments, each read once.

A segment is a run of full blocks. Blocks that several queries share (of sequences with one beginning, or of one
sequence that decodes several tokens at once) are one segment, attended once with all of them; a long run of
neighbouring blocks is read in place, what is scattered is gathered. What no segment covers (partial blocks, short
tails) is gathered into one small padded batch. The partial results meet by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from runtime.attention.cpu_kernel import flash, join_many
from runtime.execution.batch import Row, StepPlan
from runtime.kv.kv_pool import LayerKV

# A common beginning of fewer tokens than this is not worth a kernel call of its own.
MIN_SHARED = 128
# Tokens times queries from which a kernel call of their own costs less than copying them into the padded batch.
MIN_CALL = 1024
# A run of neighbours this long is read in place; below it a gather costs less than another call.
MIN_VIEW = 512
# A segment is cut in this many parts, so that few KV heads still occupy every core.
PARTS = 4


@dataclass(frozen=True)
class Segment:
    """Full blocks attended by the decode rows `members` (indices into the layout's rows).

    `begin` is the slot that they start at when they are neighbours; else `blocks` names the blocks to gather.
    """

    members: torch.Tensor
    count: int
    tokens: int
    parts: int
    begin: int
    blocks: torch.Tensor | None

    def read(self, blocks: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """`[parts, kv_heads, tokens / parts, dim]` of a layer's keys or values."""
        if self.blocks is None:
            flat = slots[self.begin : self.begin + self.tokens]
        else:
            flat = blocks.index_select(0, self.blocks).flatten(0, 1)
        return flat.view(self.parts, self.tokens // self.parts, *flat.shape[1:]).transpose(1, 2)


class DecodeLayout:
    """Where a step's decoding queries find their KV under one window; layer-independent, built once a step.

    indices: the plan's rows that decode; every token of theirs is a query of its own here, B in all. queries: int64
    `[B]`, their packed rows, or None where these are all of the step's, in order. rest_slots `[B * R]` and rest_mask
    (`[B, 1, 1, R]` or None): the padded remainder. partials: int64 `[P * B]`, the partial results that each query is
    joined from; where `padded`, the index after the last one stands for nothing.
    """

    def __init__(self, plan: StepPlan, indices: Sequence[int], window: int | None, dtype: torch.dtype) -> None:
        self._plan = plan
        self._size = plan.block_size
        self._rows = [
            Row(row.q_start + i, 1, row.start + i, row.start + i + 1, row.table)
            for row in (plan.rows[index] for index in indices)
            for i in range(row.q_len)
        ]
        self.count = len(self._rows)
        packed = np.array([row.q_start for row in self._rows])
        self.queries: torch.Tensor | None = None
        if self.count != plan.total or np.any(np.diff(packed) != 1):
            self.queries = torch.from_numpy(packed).to(plan.device)
        self.segments: list[Segment] = []
        self._rest: list[list[np.ndarray]] = [[] for _ in self._rows]
        self._results: list[list[int]] = [[] for _ in self._rows]
        self._made = 0
        self._cover(window)
        self._lay_out_rest(dtype)

    def _cover(self, window: int | None) -> None:
        if window is None:
            ends = [(row.kv_len - 1) // self._size for row in self._rows]
            for index, (row, end) in enumerate(zip(self._rows, ends, strict=True)):
                self._to_rest(index, end * self._size, row.kv_len)
            self._share(list(range(self.count)), 0, ends)
            return
        for index, row in enumerate(self._rows):
            low = max(0, row.kv_len - window)
            first, end = -(-low // self._size), (row.kv_len - 1) // self._size
            if first >= end:
                self._to_rest(index, low, row.kv_len)
                continue
            self._to_rest(index, low, first * self._size)
            self._to_rest(index, end * self._size, row.kv_len)
            self._cut([index], row.table[first:end])

    def _share(self, members: list[int], begin: int, ends: list[int]) -> None:
        """Cover full blocks `begin : ends[i]` of each member, common blocks once."""
        members = [index for index in members if ends[index] > begin]
        if not members:
            return
        first = self._rows[members[0]].table
        if len(members) == 1:
            self._cut(members, first[begin : ends[members[0]]])
            return
        common = min(ends[index] for index in members)
        for index in members[1:]:
            differs = np.flatnonzero(first[begin:common] != self._rows[index].table[begin:common])
            if len(differs):
                common = begin + int(differs[0])
        if (common - begin) * self._size >= MIN_SHARED:
            self._cut(members, first[begin:common])
            begin = common
        branches: dict[int, list[int]] = {}
        for index in members:
            key = int(self._rows[index].table[common]) if common < ends[index] else -1 - index
            branches.setdefault(key, []).append(index)
        for branch in branches.values():
            self._share(branch, begin, ends)

    def _cut(self, members: list[int], blocks: np.ndarray) -> None:
        """Make segments of these blocks, or leave them to the rest when they are few."""
        if len(blocks) * self._size * len(members) < MIN_CALL:
            self._leave(members, blocks)
            return
        begins = np.concatenate([[0], np.flatnonzero(np.diff(blocks) != 1) + 1])
        lengths = np.diff(begins, append=len(blocks))
        long = lengths * self._size >= MIN_VIEW
        for begin, length in zip(begins[long].tolist(), lengths[long].tolist(), strict=True):
            self._add(members, blocks[begin : begin + length], in_place=True)
        loose = blocks[~np.repeat(long, lengths)]
        if len(loose) * self._size * len(members) >= MIN_CALL:
            self._add(members, loose, in_place=False)
        else:
            self._leave(members, loose)

    def _leave(self, members: list[int], blocks: np.ndarray) -> None:
        if len(blocks):
            slots = (blocks[:, None].astype(np.int64) * self._size + np.arange(self._size)).ravel()
            for index in members:
                self._rest[index].append(slots)

    def _add(self, members: list[int], blocks: np.ndarray, *, in_place: bool) -> None:
        tokens = len(blocks) * self._size
        parts = next(parts for parts in range(PARTS, 0, -1) if tokens % parts == 0)
        device = self._plan.device
        self.segments.append(
            Segment(
                members=torch.tensor(members, device=device),
                count=len(members),
                tokens=tokens,
                parts=parts,
                begin=int(blocks[0]) * self._size,
                blocks=None if in_place else torch.from_numpy(blocks.astype(np.int64)).to(device),
            )
        )
        for part in range(parts):
            for place, index in enumerate(members):
                self._results[index].append(self._made + part * len(members) + place)
        self._made += parts * len(members)

    def _to_rest(self, index: int, low: int, high: int) -> None:
        if low < high:
            where = np.arange(low, high, dtype=np.int64)
            table = self._rows[index].table
            self._rest[index].append(table[where // self._size].astype(np.int64) * self._size + where % self._size)

    def _lay_out_rest(self, dtype: torch.dtype) -> None:
        device = self._plan.device
        slots = [np.concatenate(pieces) for pieces in self._rest]
        width = max(map(len, slots))
        # A padded place repeats a slot that the row has written: a masked NaN would still spoil the sum.
        padded = np.stack([np.concatenate([row, np.full(width - len(row), row[0])]) for row in slots])
        self.rest_slots = torch.from_numpy(padded.ravel()).to(device)
        self.rest_mask: torch.Tensor | None = None
        if any(len(row) < width for row in slots):
            mask = np.zeros((self.count, 1, 1, width), dtype=np.float32)
            for index, row in enumerate(slots):
                mask[index, ..., len(row) :] = -np.inf
            self.rest_mask = torch.from_numpy(mask).to(device, dtype)
        for index in range(self.count):
            self._results[index].append(self._made + index)
        total = self._made + self.count
        most = max(map(len, self._results))
        self.padded = any(len(results) < most for results in self._results)
        partials = [results + [total] * (most - len(results)) for results in self._results]
        self.partials = torch.tensor(partials, device=device).t().reshape(-1)
        self.joined = most


def decode_attention(
    query: torch.Tensor, kv: LayerKV, layout: DecodeLayout, scale: float, *, want_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output `[B, heads, dim]` and log-sum-exp `[B, heads]` of the layout's queries.

    query is the whole packed batch, `[T, heads, dim]`; the rows that decode are picked from it.
    """
    _, heads, dim = query.shape
    group = heads // kv.kv_heads
    picked = query if layout.queries is None else query.index_select(0, layout.queries)
    rows = picked.reshape(layout.count, kv.kv_heads, group, dim)
    # The kernel lays its results out by query: `[queries, group, kv_heads, dim]` without a copy.
    outs, lses = [], []
    for out, lse in (*_segment_attention(rows, kv, layout, scale), _rest_attention(rows, kv, layout, scale)):
        outs.append(out.transpose(1, 2).reshape(-1, group, kv.kv_heads, dim))
        lses.append(lse.transpose(1, 2).reshape(-1, group, kv.kv_heads))
    if len(outs) == 1:
        out, lse = outs[0], lses[0]
    else:
        if layout.padded:
            outs.append(rows.new_zeros(1, group, kv.kv_heads, dim))
            lses.append(lses[0].new_full((1, group, kv.kv_heads), float("-inf")))
        shape = (layout.joined, layout.count, group, kv.kv_heads)
        parts = torch.cat(outs).index_select(0, layout.partials).view(*shape, dim)
        part_lses = torch.cat(lses).index_select(0, layout.partials).view(shape)
        out = join_many(parts, part_lses)
        lse = torch.logsumexp(part_lses, dim=0) if want_lse else part_lses[0]
    out = out.to(query.dtype).transpose(1, 2).reshape(layout.count, heads, dim)
    return out, lse.transpose(1, 2).reshape(layout.count, heads) if want_lse else None


def _rest_attention(
    rows: torch.Tensor, kv: LayerKV, layout: DecodeLayout, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    def gather(slots: torch.Tensor) -> torch.Tensor:
        found = slots.index_select(0, layout.rest_slots).to(rows.dtype)
        return found.view(layout.count, -1, *found.shape[1:]).transpose(1, 2)

    return flash(rows, gather(kv.key_slots), gather(kv.value_slots), scale, mask=layout.rest_mask)


def _segment_attention(
    rows: torch.Tensor, kv: LayerKV, layout: DecodeLayout, scale: float
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    kv_heads, group, dim = rows.shape[1:]
    for segment in layout.segments:
        keys = segment.read(kv.keys, kv.key_slots).to(rows.dtype)
        values = segment.read(kv.values, kv.value_slots).to(rows.dtype)
        mine = rows if segment.count == layout.count else rows.index_select(0, segment.members)
        queries = mine.transpose(0, 1).reshape(1, kv_heads, segment.count * group, dim)
        yield flash(queries.expand(segment.parts, -1, -1, -1), keys, values, scale)
