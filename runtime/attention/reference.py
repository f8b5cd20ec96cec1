"""Attention in plain steps: gather, score, mask, softmax, sum. Slow; every other back end is tested against it."""

from __future__ import annotations

import torch

from runtime.attention.interface import AttentionOptions
from runtime.execution.batch import Row, StepPlan
from runtime.kv.kv_pool import LayerKV


class ReferenceAttention:
    """Supports every option, accumulates in float32, runs on any device."""

    name = "reference"

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        out = query.new_empty(query.shape[0], query.shape[1], kv.values.shape[-1])
        lse = query.new_empty(query.shape[:2], dtype=torch.float32) if options.want_lse else None
        for index, row in enumerate(plan.rows):
            where = slice(row.q_start, row.q_start + row.q_len)
            slots = plan.slots(index, 0, row.kv_len)
            keys = slots.read(kv.keys, kv.key_slots).float()
            values = slots.read(kv.values, kv.value_slots).float()
            row_out, row_lse = attend_row(query[where].float(), keys, values, row, options)
            out[where] = row_out.to(query.dtype)
            if lse is not None:
                lse[where] = row_lse
        return out, lse


def attend_row(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, row: Row, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[T, heads, value_dim]` and log-sum-exp `[T, heads]` of one row, all float32.

    query `[T, heads, key_dim]` at positions `row.start : row.kv_len`; keys and values `[kv_len, kv_heads, dim]`.
    """
    group = query.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)
    values = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,khd->htk", query, keys) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    at = torch.arange(row.start, row.kv_len, device=query.device)[:, None]
    past = torch.arange(row.kv_len, device=query.device)[None, :]
    seen = past <= at
    if options.window is not None:
        seen &= past > at - options.window
    scores = scores.masked_fill(~seen, float("-inf"))
    if options.sinks is not None:
        sinks = options.sinks.float()[:, None, None].expand(-1, row.q_len, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None])[..., : row.kv_len]
    return torch.einsum("htk,khd->thd", weights, values), lse.transpose(0, 1)
