"""Attention through torch's own kernels over KV read in place where blocks are neighbours, gathered where not."""

from __future__ import annotations

import torch
from torch.nn import functional

from runtime.attention import cpu_kernel
from runtime.attention.cpu_chunk import chunk_attention
from runtime.attention.cpu_decode import DecodeLayout, decode_attention
from runtime.attention.interface import AttentionOptions
from runtime.attention.reference import ReferenceAttention
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV

# Fewer queries than this of one sequence are attended like those of as many sequences.
MIN_CHUNK = 32


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
) -> tuple[torch.Tensor, torch.Tensor | None]:
    want_lse = options.want_lse or options.sinks is not None
    decoding, chunks = plan.derived(("cpu rows", options.window), lambda: _split(plan, options.window))
    layout: DecodeLayout | None = None
    if decoding:
        layout = plan.derived(
            ("decode", options.window, query.dtype), lambda: DecodeLayout(plan, decoding, options.window, query.dtype)
        )
    if layout is not None and not chunks:
        out, lse = decode_attention(query, kv, layout, options.scale, want_lse=want_lse)
    else:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32) if want_lse else None
        if layout is not None:
            decoded, decoded_lse = decode_attention(query, kv, layout, options.scale, want_lse=want_lse)
            out[layout.queries] = decoded
            if lse is not None and decoded_lse is not None:
                lse[layout.queries] = decoded_lse
        found = chunk_attention(query, kv, plan, chunks, options.window, options.scale)
        for index, (row_out, row_lse) in zip(chunks, found, strict=True):
            row = plan.rows[index]
            where = slice(row.q_start, row.q_start + row.q_len)
            out[where] = row_out
            if lse is not None:
                lse[where] = row_lse
    if options.sinks is not None and lse is not None:
        return cpu_kernel.add_sinks(out, lse, options.sinks)
    return out, lse


def _split(plan: StepPlan, window: int | None) -> tuple[list[int], list[int]]:
    """The rows whose queries are attended one by one, and those that are attended as chunks."""
    few = MIN_CHUNK if window is None else 2
    counts = [row.q_len for row in plan.rows]
    return [i for i, n in enumerate(counts) if n < few], [i for i, n in enumerate(counts) if n >= few]


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
