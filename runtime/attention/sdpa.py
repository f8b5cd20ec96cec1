"""Attention through torch's own kernels over KV read in place where blocks are neighbours, gathered where not."""

from __future__ import annotations

import torch
from torch.nn import functional

from runtime.attention import cpu_kernel
from runtime.attention.cpu_chunk import chunk_attention
from runtime.attention.cpu_decode import DecodeLayout, decode_attention
from runtime.attention.interface import AttentionOptions
from runtime.attention.reference import ReferenceAttention
from runtime.batch import StepPlan
from runtime.kv_pool import LayerKV


class SdpaAttention:
    """The default where no paged kernel is installed.

    On CPU the flash kernel with its log-sum-exp; elsewhere the public function under a mask, a row at a time. What
    neither takes (softcap; off the CPU also sinks and the log-sum-exp) goes to the reference.
    """

    name = "sdpa"

    def __init__(self) -> None:
        self._reference = ReferenceAttention()

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if cpu_kernel.supports(query, kv.values.shape[-1], options.softcap):
            return _on_cpu(query, kv, plan, options)
        if options.softcap is not None or options.sinks is not None or options.want_lse:
            return self._reference(query, kv, plan, options)
        return _masked_rows(query, kv, plan, options), None


def _on_cpu(
    query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    decoding = plan.derived("decoding", lambda: [i for i, row in enumerate(plan.rows) if row.q_len == 1])
    chunks = plan.derived("chunks", lambda: [i for i, row in enumerate(plan.rows) if row.q_len > 1])
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    lse = query.new_empty(query.shape[:2], dtype=torch.float32)
    if decoding:
        layout = plan.derived(
            ("decode", options.window, query.dtype), lambda: DecodeLayout(plan, decoding, options.window, query.dtype)
        )
        out[layout.queries], lse[layout.queries] = decode_attention(query, kv, layout, options.scale)
    for index in chunks:
        row = plan.rows[index]
        where = slice(row.q_start, row.q_start + row.q_len)
        out[where], lse[where] = chunk_attention(query[where], kv, plan, index, options.window, options.scale)
    if options.sinks is not None:
        return cpu_kernel.add_sinks(out, lse, options.sinks)
    return out, lse


def _masked_rows(query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions) -> torch.Tensor:
    heads = query.shape[1]
    group = heads // kv.kv_heads
    out = query.new_empty(query.shape[0], heads, kv.values.shape[-1])
    for index, row in enumerate(plan.rows):
        low = 0 if options.window is None else max(0, row.start - options.window + 1)
        slots = plan.slots(index, low, row.kv_len)
        keys = slots.read(kv.keys, kv.key_slots).to(query.dtype).transpose(0, 1)
        values = slots.read(kv.values, kv.value_slots).to(query.dtype).transpose(0, 1)
        where = slice(row.q_start, row.q_start + row.q_len)
        attended = functional.scaled_dot_product_attention(
            query[where].view(row.q_len, kv.kv_heads, group, -1).permute(1, 2, 0, 3),
            keys[:, None].expand(-1, group, -1, -1),
            values[:, None].expand(-1, group, -1, -1),
            attn_mask=_seen(plan, index, low, options.window),
            scale=options.scale,
        )
        out[where] = attended.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _seen(plan: StepPlan, index: int, low: int, window: int | None) -> torch.Tensor | None:
    """Bool `[T, kv_len - low]`, which positions from `low` on each query of a row sees; None when it sees all."""
    row = plan.rows[index]
    if row.q_len == 1:
        return None

    def build() -> torch.Tensor:
        at = torch.arange(row.start, row.kv_len, device=plan.device)[:, None]
        past = torch.arange(low, row.kv_len, device=plan.device)[None, :]
        seen = past <= at
        return seen if window is None else seen & (past > at - window)

    return plan.derived(("seen", index, window), build)
