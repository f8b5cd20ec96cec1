"""A step's KV gathered into packed tensors, for kernels that cannot read pages where they lie."""

from __future__ import annotations

import torch

from runtime.attention.paged_layout import PagedLayout, paged_layout
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV


def gather(kv: LayerKV, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[sum of kv_lens, kv_heads, dim]`, the rows' positions one after the other."""
    layout = paged_layout(plan)
    slots = plan.derived("gathered", lambda: _slots(layout, sum(row.kv_len for row in plan.rows), plan.block_size))
    return kv.key_slots.index_select(0, slots), kv.value_slots.index_select(0, slots)


def _slots(layout: PagedLayout, total: int, block_size: int) -> torch.Tensor:
    """Int64 `[total]`, the slot of every position of every row."""
    device = layout.kv_lens.device
    rows = torch.repeat_interleave(
        torch.arange(len(layout.kv_lens), device=device), layout.kv_lens.long(), output_size=total
    )
    position = torch.arange(total, device=device) - layout.cu_kv.long()[rows]
    return layout.table[rows, position // block_size].long() * block_size + position % block_size
