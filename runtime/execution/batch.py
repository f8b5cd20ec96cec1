"""One step's work, laid out once: packed ids and positions, write slots, and where every row's KV lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from runtime.errors import InvalidRequest

T = TypeVar("T")


@dataclass
class BatchItem:
    """The next tokens of one sequence.

    tokens: int32 `[T]`, T >= 1, to be computed in this step.
    start: position of `tokens[0]`; the KV of positions below it is in the pool.
    table: int32 block ids, at least `ceil((start + T) / block_size)` of them.
    logit_rows: how many of the last tokens' logits are returned, 0 to T.
    """

    tokens: np.ndarray
    start: int
    table: np.ndarray
    logit_rows: int = 1


class SlotRange:
    """The slots of consecutive positions of one sequence.

    Neighbouring blocks are read as a view of the pool, scattered ones are gathered by whole blocks. Exactly the
    positions asked for are returned, so a slot that was never written is never looked at.
    """

    def __init__(self, table: np.ndarray, low: int, high: int, block_size: int, device: torch.device) -> None:
        first, last = low // block_size, (high - 1) // block_size
        blocks = table[first : last + 1]
        self.length = high - low
        self._offset = low - first * block_size
        self._begin = int(blocks[0]) * block_size + self._offset
        self._blocks: torch.Tensor | None = None
        if not np.array_equal(blocks, np.arange(blocks[0], blocks[0] + len(blocks))):
            self._blocks = torch.from_numpy(blocks.astype(np.int64)).to(device)

    @property
    def contiguous(self) -> bool:
        return self._blocks is None

    def read(self, blocks: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """`[length, kv_heads, dim]` out of a layer's tensor, given as blocks and as slots."""
        if self._blocks is None:
            return slots[self._begin : self._begin + self.length]
        gathered = blocks.index_select(0, self._blocks).flatten(0, 1)
        return gathered[self._offset : self._offset + self.length]


@dataclass(frozen=True)
class Row:
    """One sequence's share of the packed batch: queries `q_start : q_start + q_len` at positions `start : kv_len`."""

    q_start: int
    q_len: int
    start: int
    kv_len: int
    table: np.ndarray


def common_blocks(rows: Sequence[Row], block_size: int) -> int:
    """How many leading blocks lie before every row's own tokens and are the same for all."""
    most = min(row.start // block_size for row in rows)
    tables = np.stack([row.table[:most] for row in rows])
    differs = np.flatnonzero((tables != tables[0]).any(axis=0))
    return int(differs[0]) if len(differs) else most


class StepPlan:
    """Everything about a step that does not depend on the layer.

    input_ids, position_ids: int64 `[1, T]`. write_slots: int64 `[T]`, the slot that each token's KV goes to.
    logit_rows: int64 `[R]`, the packed rows whose logits are wanted, ascending. Back ends keep what they derive from
    the rows in the plan (`derived`), so that index arithmetic is done once a step and not once a layer.
    """

    def __init__(self, items: Sequence[BatchItem], block_size: int, num_blocks: int, device: torch.device) -> None:
        if not items:
            raise InvalidRequest("items", [], "a step needs at least one item")
        self.device = device
        self.block_size = block_size
        self.rows: list[Row] = []
        self._derived: dict[Any, Any] = {}
        logit_rows: list[int] = []
        packed = 0
        for index, item in enumerate(items):
            count = len(item.tokens)
            kv_len = item.start + count
            table = self._cut_table(index, item, kv_len)
            self.rows.append(Row(packed, count, item.start, kv_len, table))
            packed += count
            if not 0 <= item.logit_rows <= count:
                raise InvalidRequest(f"items[{index}].logit_rows", item.logit_rows, f"must be from 0 to {count}")
            logit_rows.extend(range(packed - item.logit_rows, packed))
        self.total = packed
        tokens = np.concatenate([item.tokens for item in items])
        positions, slots = self._places(num_blocks)
        rows = np.array(logit_rows, dtype=np.int64)
        on_device = self.to_device(np.concatenate([tokens, positions, slots, rows], dtype=np.int64))
        ids, self.logit_rows = on_device[: 3 * packed].view(3, packed), on_device[3 * packed :]
        self.input_ids = ids[0:1]
        self.position_ids = ids[1:2]
        self.write_slots = ids[2]

    def _places(self, num_blocks: int) -> tuple[np.ndarray, np.ndarray]:
        """Position and slot of every packed token. All rows at once: in a step of few tokens each call counts."""
        tables = [row.table for row in self.rows]
        blocks = self._join_tables(tables, num_blocks)
        counts = [row.q_len for row in self.rows]
        # What added to a packed index makes it a position, and where the row's table begins among all of them.
        shift = [row.start - row.q_start for row in self.rows]
        begins = np.cumsum([0, *(len(table) for table in tables[:-1])])
        positions = np.arange(self.total) + np.repeat(shift, counts)
        block, offset = np.divmod(positions, self.block_size)
        slots = blocks[block + np.repeat(begins, counts)].astype(np.int64) * self.block_size + offset
        return positions, slots

    def _cut_table(self, index: int, item: BatchItem, kv_len: int) -> np.ndarray:
        """The part of an item's table that the step needs."""
        if len(item.tokens) < 1:
            raise InvalidRequest(f"items[{index}].tokens", item.tokens, "must hold at least one token")
        if item.start < 0:
            raise InvalidRequest(f"items[{index}].start", item.start, "must not be negative")
        needed = -(-kv_len // self.block_size)
        if len(item.table) < needed:
            raise InvalidRequest(f"items[{index}].table", len(item.table), f"{kv_len} tokens need {needed} blocks")
        return np.asarray(item.table[:needed])

    @staticmethod
    def _join_tables(tables: Sequence[np.ndarray], num_blocks: int) -> np.ndarray:
        """The items' tables one after the other, after a look for blocks that do not exist."""
        blocks = np.concatenate(tables)
        if blocks.min() < 0 or blocks.max() >= num_blocks:
            index = next(i for i, table in enumerate(tables) if table.min() < 0 or table.max() >= num_blocks)
            raise InvalidRequest(
                f"items[{index}].table", tables[index], f"block ids must be from 0 to {num_blocks - 1}"
            )
        return blocks

    def to_device(self, numbers: np.ndarray) -> torch.Tensor:
        """The numbers on the step's device; from pinned memory, so that the host does not wait for the copy."""
        found = torch.from_numpy(numbers)
        cuda = self.device.type == "cuda"
        return (found.pin_memory() if cuda else found).to(self.device, non_blocking=cuda)

    def derived(self, key: Any, build: Callable[[], T]) -> T:
        """What `build` returns, computed at most once in this step for each key."""
        if key not in self._derived:
            self._derived[key] = build()
        found: T = self._derived[key]
        return found

    def slots(self, row: int, low: int, high: int) -> SlotRange:
        """The slots of positions `low : high` of a row."""
        table = self.rows[row].table
        return self.derived(
            ("slots", row, low, high), lambda: SlotRange(table, low, high, self.block_size, self.device)
        )
