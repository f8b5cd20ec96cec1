"""Attention through torch's own kernels over gathered (or, where blocks are neighbours, viewed) KV."""

from __future__ import annotations

import torch
from torch.nn import functional

from runtime.attention.interface import AttentionOptions
from runtime.attention.reference import ReferenceAttention
from runtime.batch import StepPlan
from runtime.kv_pool import LayerKV


class SdpaAttention:
    """The default where no paged kernel is installed. Softcap and sinks go to the reference."""

    name = "sdpa"

    def __init__(self) -> None:
        self._reference = ReferenceAttention()

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if options.softcap is not None or options.sinks is not None or options.want_lse:
            return self._reference(query, kv, plan, options)
        heads = query.shape[1]
        group = heads // kv.kv_heads
        out = query.new_empty(query.shape[0], heads, kv.values.shape[-1])
        for index, row in enumerate(plan.rows):
            low = 0
            if options.window is not None:
                low = max(0, row.start - options.window + 1)
            slots = plan.slots(index, low, row.kv_len)
            keys = slots.read(kv.keys, kv.key_slots).to(query.dtype)
            values = slots.read(kv.values, kv.value_slots).to(query.dtype)
            where = slice(row.q_start, row.q_start + row.q_len)
            mask = None
            if row.q_len > 1:
                at = torch.arange(row.start, row.kv_len, device=query.device)[:, None]
                past = torch.arange(low, row.kv_len, device=query.device)[None, :]
                mask = past <= at
                if options.window is not None:
                    mask &= past > at - options.window
            q = query[where].view(row.q_len, kv.kv_heads, group, -1).permute(1, 2, 0, 3)
            k = keys.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
            v = values.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=options.scale)
            out[where] = attended.permute(2, 0, 1, 3).flatten(1, 2)
        return out, None
