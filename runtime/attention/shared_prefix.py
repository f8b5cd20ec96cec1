"""Attention to a beginning that several rows share once for all of them, through a kernel that returns log-sum-exps.

One call attends the queries of each group of rows, packed as one sequence, to the blocks that all of the group begin
with, and another one each row to what is left of its KV. The two meet by log-sum-exp.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from runtime.attention.cpu_kernel import add_sinks, join_two
from runtime.attention.interface import AttentionBackend, AttentionOptions
from runtime.attention.paged_layout import PagedLayout, lay_out, paged_layout
from runtime.execution.batch import StepPlan, common_blocks
from runtime.kv.kv_pool import LayerKV

# Keys that need not be read again, from which on two calls and a join may be worth it.
MIN_SAVED = 2048


class PagedKernel(AttentionBackend, Protocol):
    """A back end that attends by any layout of the plan's pool."""

    def attend(
        self,
        query: torch.Tensor,
        kv: LayerKV,
        plan: StepPlan,
        layout: PagedLayout,
        options: AttentionOptions,
        *,
        causal: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output and log-sum-exp of the layout's rows, as AttentionBackend returns them.

        query is `[T, heads, key_dim]` with the layout's T. Causal: a row's queries are the last of its positions;
        otherwise each sees all of them.
        """
        ...


@dataclass(frozen=True)
class Shared:
    """members: int64, the packed queries of all groups, group after group. prefixes: a row for each group. tails: all
    of the step's rows, without what their group shares."""

    members: torch.Tensor
    prefixes: PagedLayout
    tails: PagedLayout


class SharedPrefixAttention:
    """Another back end over shared beginnings; where there are none, or a window hides them, that back end itself."""

    def __init__(self, kernel: PagedKernel) -> None:
        self._kernel = kernel
        self.name = f"{kernel.name}+shared"

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shared = plan.derived("shared prefixes", lambda: find_shared(plan)) if options.window is None else None
        if shared is None:
            return self._kernel.attend(query, kv, plan, paged_layout(plan), options)
        parts = replace(options, sinks=None, want_lse=True)
        out, lse = self._kernel.attend(query, kv, plan, shared.tails, parts)
        queries = query.index_select(0, shared.members)
        prefix_out, prefix_lse = self._kernel.attend(queries, kv, plan, shared.prefixes, parts, causal=False)
        if lse is None or prefix_lse is None:
            raise RuntimeError(f"{self._kernel.name} returned no log-sum-exp")
        joined, joined_lse = join_two(
            out.index_select(0, shared.members).float(),
            lse.index_select(0, shared.members),
            prefix_out.float(),
            prefix_lse,
        )
        out = out.index_copy(0, shared.members, joined.to(out.dtype))
        lse = lse.contiguous().index_copy(0, shared.members, joined_lse)
        return (out, lse) if options.sinks is None else add_sinks(out, lse, options.sinks)


def find_shared(plan: StepPlan) -> Shared | None:
    """Rows whose cached positions begin with the same blocks; None when they share too little."""
    groups = [group for group in _groups(plan) if (len(group[0]) - 1) * group[1] * plan.block_size >= MIN_SAVED]
    if not groups:
        return None
    rows = plan.rows
    cut = np.zeros(len(rows), dtype=np.int64)
    for members, blocks in groups:
        cut[members] = blocks
    packed = [np.arange(rows[i].q_start, rows[i].q_start + rows[i].q_len) for members, _ in groups for i in members]
    size = plan.block_size
    prefixes = lay_out(
        plan,
        [sum(rows[i].q_len for i in members) for members, _ in groups],
        [blocks * size for _, blocks in groups],
        [rows[members[0]].table[:blocks] for members, blocks in groups],
    )
    tails = lay_out(
        plan,
        [row.q_len for row in rows],
        [row.kv_len - int(blocks) * size for row, blocks in zip(rows, cut, strict=True)],
        [row.table[blocks:] for row, blocks in zip(rows, cut, strict=True)],
    )
    return Shared(plan.to_device(np.concatenate(packed)), prefixes, tails)


def _groups(plan: StepPlan) -> list[tuple[list[int], int]]:
    """Rows that begin with the same block, and how many full blocks of cached positions all of them have in common."""
    by_first: defaultdict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(plan.rows):
        if row.start >= plan.block_size:
            by_first[int(row.table[0])].append(index)
    return [
        (members, common_blocks([plan.rows[i] for i in members], plan.block_size))
        for members in by_first.values()
        if len(members) > 1
    ]
