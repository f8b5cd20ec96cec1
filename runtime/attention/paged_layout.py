"""A step as paged kernels want it: cumulative query lengths, KV lengths and one padded block table, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runtime.execution.batch import StepPlan


@dataclass(frozen=True)
class PagedLayout:
    """What every paged kernel is given.

    cu_q: int32 `[N + 1]`, where each row's queries begin in the packed batch, and their total. kv_lens: int32 `[N]`,
    positions that a row's KV has; 0 marks a row of padding. cu_kv: int32 `[N + 1]`, their running sum from 0. table:
    int32 `[N, width]` block ids; beyond a row's blocks it repeats the row's first one, so every entry is a real block.
    q_lens: int64 `[N]` on the host, at least 1. max_kv bounds the KV lengths.
    """

    cu_q: torch.Tensor
    kv_lens: torch.Tensor
    cu_kv: torch.Tensor
    table: torch.Tensor
    q_lens: np.ndarray
    max_kv: int

    @property
    def max_q(self) -> int:
        return int(self.q_lens.max())


def pack(count: int, width: int) -> np.ndarray:
    """Room on the host for the four tensors of a layout, side by side, so that one copy carries them."""
    return np.zeros(3 * count + 2 + count * width, dtype=np.int32)


def split(packed: Any, count: int, width: int) -> tuple[Any, Any, Any, Any]:
    """cu_q, kv_lens, cu_kv and table as views of packed numbers, an array or a tensor."""
    lens, cu_kv, table = count + 1, 2 * count + 1, 3 * count + 2
    return packed[:lens], packed[lens:cu_kv], packed[cu_kv:table], packed[table:].reshape(count, width)


def paged_layout(plan: StepPlan) -> PagedLayout:
    """The layout of a step, built once and sent to the device in one copy."""
    return plan.derived(
        "paged",
        lambda: lay_out(
            plan,
            [row.q_len for row in plan.rows],
            [row.kv_len for row in plan.rows],
            [row.table for row in plan.rows],
        ),
    )


def lay_out(plan: StepPlan, q_lens: Sequence[int], kv_lens: Sequence[int], tables: Sequence[np.ndarray]) -> PagedLayout:
    """Rows of these lengths and block ids, at least one a row, on the plan's device."""
    count, width = len(q_lens), max(map(len, tables))
    packed = pack(count, width)
    cu_q, lens, cu_kv, table = split(packed, count, width)
    lens[:] = kv_lens
    cu_q[1:] = np.cumsum(q_lens)
    cu_kv[1:] = np.cumsum(lens)
    for index, blocks in enumerate(tables):
        table[index, : len(blocks)] = blocks
        table[index, len(blocks) :] = blocks[0]
    return PagedLayout(*split(plan.to_device(packed), count, width), np.array(q_lens), int(lens.max()))
