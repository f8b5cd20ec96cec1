"""Torch's flash attention for CPU with its log-sum-exp, and how partial results over split keys are joined."""

from __future__ import annotations

import torch

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def supports(query: torch.Tensor, value_dim: int, softcap: float | None) -> bool:
    """Whether the kernel takes this: on CPU, keys and values of one width, no softcap."""
    return query.device.type == "cpu" and query.dtype in _DTYPES and query.shape[-1] == value_dim and softcap is None


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[B, H, T, D]` and natural log-sum-exp `[B, H, T]` (float32).

    query `[B, H, T, D]`, key and value `[B, H, K, D]`, any strides with the last axis dense. mask is added to the
    scores, in the query's dtype, broadcast to `[B, H, T, K]`.
    """
    out, lse = _FLASH(query, key, value, 0.0, False, attn_mask=mask, scale=scale)
    return out, lse


def join_two(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two disjoint sets of keys from the attention over each; out `[..., D]`, lse `[...]`."""
    share = torch.sigmoid(lse - other_lse)[..., None]
    return other + share * (out - other), torch.logaddexp(lse, other_lse)


def join_many(outs: torch.Tensor, lses: torch.Tensor) -> torch.Tensor:
    """The same for the partial outputs along axis 0; a log-sum-exp of minus infinity stands for no keys at all."""
    return (outs * torch.softmax(lses, dim=0)[..., None]).sum(0)


def add_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give each head's sink its share of the softmax; out `[T, H, D]`, lse `[T, H]`, sinks `[H]`."""
    sinks = sinks.float()
    return (out * torch.sigmoid(lse - sinks)[..., None]).to(out.dtype), torch.logaddexp(lse, sinks.expand_as(lse))
