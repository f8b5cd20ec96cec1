"""How a step's attention is cut into tasks for the native kernel; see runtime/native/attention.c.

Few queries read their context once for all of them: blocks that several sequences share are a segment of their own,
attended with the queries of all. Many queries of one sequence (a chunk) are cut by queries and KV heads instead. A
segment that would keep one core busy while others wait is cut along its positions. What was attended in parts is
joined by log-sum-exp.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from runtime.execution.batch import Row, StepPlan

# Positions that the kernel takes at a time; parts of a context are cut at multiples of it.
TILE = 64
# A chunk of so many tokens is bound by arithmetic: what it shares with others is not worth joining.
MIN_CHUNK = 32
# A common beginning of fewer tokens is not worth joining partial results for.
MIN_SHARED = 128
# Query rows that one task holds: their state stays in a core's cache.
MAX_ROWS = 192
# Up to so many rows a task takes all KV heads, which lie side by side in the pool.
FEW_ROWS = 48
# Reading a tile costs as much as computing it for so many rows.
READING = 8
# Tasks for each thread, so that one that is held up does not hold up the step.
TASKS_PER_THREAD = 4
# Pieces are cut finer until the last thread is done in so many times the time that would do if all were as soon.
MAX_LATE = 1.04
# Pieces that are cut finer at most: looking for them takes time as well.
MOST_FINER = 4

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Segment:
    """Positions `low : high` of a block table that begins at `table`, for these packed rows and their positions."""

    tokens: Ints
    at: Ints
    table: int
    low: int
    high: int


@dataclass
class NativeLayout:
    """Arrays that the kernel reads, all int32; built once a step.

    tasks `[N, 8]` (members, count, head, heads, table, low, high, part), tokens and positions `[M]` (members), blocks
    (all tables), merges `[J, 3]` (token, begin, count) and parts (into partial results, of which there are
    `part_count`). most_rows: query rows of a task over all its KV heads, at most.
    """

    tasks: Ints
    tokens: Ints
    positions: Ints
    blocks: Ints
    merges: Ints
    parts: Ints
    part_count: int
    most_rows: int


def native_layout(plan: StepPlan, window: int | None, kv_heads: int, group: int, threads: int) -> NativeLayout:
    """Cut the attention of a step, for a kernel on that many threads."""
    return _Cutter(plan, window, kv_heads, group, threads).layout()


@dataclass
class _Cutter:
    plan: StepPlan
    window: int | None
    kv_heads: int
    group: int
    threads: int
    _segments: list[Segment] = field(default_factory=list)

    def layout(self) -> NativeLayout:
        rows = self.plan.rows
        begins = np.cumsum([0, *(len(row.table) for row in rows[:-1])]).tolist()
        self._tables = begins
        sharing = []
        for index, row in enumerate(rows):
            if row.q_len < MIN_CHUNK and self.window is None and len(rows) > 1:
                sharing.append(index)
            else:
                self._segment([index], self._first(row), row.kv_len)
        self._share(sharing, 0)
        return self._tasks()

    def _first(self, row: Row) -> int:
        """The first position that any query of a row sees."""
        return 0 if self.window is None else max(0, row.start - self.window + 1)

    def _segment(self, indices: Sequence[int], low: int, high: int) -> None:
        mine = [self.plan.rows[index] for index in indices]
        tokens = np.concatenate([np.arange(row.q_start, row.q_start + row.q_len, dtype=np.int32) for row in mine])
        at = np.concatenate([np.arange(row.start, row.kv_len, dtype=np.int32) for row in mine])
        self._segments.append(Segment(tokens, at, self._tables[indices[0]], low, high))

    def _share(self, indices: list[int], begin: int) -> None:
        """Cover positions from block `begin` on of each row, common full blocks before all of their tokens once."""
        rows, size = self.plan.rows, self.plan.block_size
        if not indices:
            return
        if len(indices) > 1:
            first = rows[indices[0]].table
            common = min(rows[index].start for index in indices) // size
            for index in indices[1:]:
                differs = np.flatnonzero(first[begin:common] != rows[index].table[begin:common])
                if len(differs):
                    common = begin + int(differs[0])
            if (common - begin) * size >= MIN_SHARED:
                self._segment(indices, begin * size, common * size)
                begin = common
            branches: dict[int, list[int]] = {}
            for index in indices:
                # Behind the last common block: where tables part, or where a row's own tokens begin.
                key = int(rows[index].table[common]) if rows[index].start // size > common else -1 - index
                branches.setdefault(key, []).append(index)
            if len(branches) < len(indices):
                for branch in branches.values():
                    self._share(branch, begin)
                return
        for index in indices:
            self._segment([index], begin * size, rows[index].kv_len)

    def _pieces(self) -> Iterator[tuple[Segment, int, int]]:
        """Segments of as many rows as a task may hold, each with its first KV head and how many."""
        for segment in self._segments:
            rows = len(segment.tokens) * self.group
            if rows <= FEW_ROWS:
                yield segment, 0, self.kv_heads
                continue
            # Smaller ones where there would be too few for all threads.
            wanted = -(-TASKS_PER_THREAD * self.threads // self.kv_heads)
            each = max(1, min(MAX_ROWS // self.group, max(-(-len(segment.tokens) // wanted), FEW_ROWS // self.group)))
            for begin in range(0, len(segment.tokens), each):
                at = segment.at[begin : begin + each]
                low = segment.low
                if self.window is not None:
                    low = max(low, int(at.min()) - self.window + 1)
                high = min(segment.high, int(at.max()) + 1)
                piece = Segment(segment.tokens[begin : begin + each], at, segment.table, low, high)
                for head in range(self.kv_heads):
                    yield piece, head, 1

    def _tasks(self) -> NativeLayout:
        pieces = list(self._pieces())
        costs = [(len(p.tokens) * self.group + READING) * heads * (p.high - p.low) for p, _, heads in pieces]
        cuts = self._cuts(pieces, costs)
        whole = self._whole()
        tasks: list[tuple[float, tuple[int, ...]]] = []
        members: list[Segment] = []
        places: dict[int, int] = {}
        results: dict[tuple[int, int, int], int] = {}
        partial: list[list[int]] = [[] for _ in range(self.plan.total)]
        made = taken = most = 0
        for (piece, head, heads), cost in zip(pieces, costs, strict=True):
            if id(piece) not in places:
                places[id(piece)] = taken
                members.append(piece)
                taken += len(piece.tokens)
            most = max(most, len(piece.tokens) * self.group * heads)
            bounds = cuts[id(piece)]
            for low, high in pairwise(bounds):
                part = -1
                if len(bounds) > 2 or not whole[piece.tokens[0]]:
                    key = (id(piece), low, high)
                    if key not in results:
                        results[key] = made
                        for place, token in enumerate(piece.tokens.tolist()):
                            partial[token].append(made + place)
                        made += len(piece.tokens)
                    part = results[key]
                share = cost * (high - low) / (bounds[-1] - bounds[0])
                fields = (places[id(piece)], len(piece.tokens), head, heads, piece.table, low, high, part)
                tasks.append((share, fields))
        tasks.sort(key=lambda task: -task[0])
        joined = [(token, found) for token, found in enumerate(partial) if found]
        begins = np.cumsum([0, *(len(found) for _, found in joined)])
        return NativeLayout(
            tasks=_ints([fields for _, fields in tasks]),
            tokens=np.concatenate([piece.tokens for piece in members]),
            positions=np.concatenate([piece.at for piece in members]),
            blocks=np.concatenate([row.table for row in self.plan.rows]).astype(np.int32),
            merges=_ints([(t, begins[i], len(found)) for i, (t, found) in enumerate(joined)]),
            parts=_ints([result for _, found in joined for result in found]),
            part_count=made,
            most_rows=most,
        )

    def _cuts(self, pieces: Sequence[tuple[Segment, int, int]], costs: Sequence[float]) -> dict[int, list[int]]:
        """Where each piece's positions are cut, by its id, so that the threads are done at about the same time."""
        total = sum(costs)
        limit = max(1.0, total / (TASKS_PER_THREAD * self.threads))
        by_id = {id(piece): piece for piece, _, _ in pieces}
        cuts = {
            id(piece): self._cut(piece, math.ceil(cost / limit - 0.25))
            for (piece, _, _), cost in zip(pieces, costs, strict=True)
        }
        for _ in range(MOST_FINER):
            shares = [
                (cost * (high - low) / (piece.high - piece.low), id(piece))
                for (piece, _, _), cost in zip(pieces, costs, strict=True)
                for low, high in pairwise(cuts[id(piece)])
            ]
            last = _last_done([share for share, _ in shares], self.threads)
            if last * self.threads <= MAX_LATE * total:
                break
            # Of equal ones the first: how sums are joined must not depend on where in memory a piece lies.
            _, largest = max(shares, key=itemgetter(0))
            finer = self._cut(by_id[largest], len(cuts[largest]))
            if len(finer) == len(cuts[largest]):
                # It has too few positions for one part more.
                break
            cuts[largest] = finer
        return cuts

    def _whole(self) -> npt.NDArray[np.bool_]:
        """For each packed token, whether one segment covers all that it sees."""
        seen = np.zeros(self.plan.total, dtype=np.int32)
        for segment in self._segments:
            seen[segment.tokens] += 1
        whole: npt.NDArray[np.bool_] = seen == 1
        return whole

    @staticmethod
    def _cut(piece: Segment, parts: int) -> list[int]:
        """Bounds of about equal parts of a piece's positions, no smaller than two tiles."""
        length = piece.high - piece.low
        count = max(1, min(parts, length // (2 * TILE)))
        step = -(-length // (count * TILE)) * TILE
        return [*range(piece.low, piece.high, step), piece.high]


def _last_done(shares: Sequence[float], threads: int) -> float:
    """When the last thread is done, if whoever is free takes the largest share that is left."""
    loads = [0.0] * threads
    for share in sorted(shares, reverse=True):
        heapq.heapreplace(loads, loads[0] + share)
    return max(loads)


def _ints(numbers: Sequence[object]) -> Ints:
    return np.array(numbers, dtype=np.int32)
