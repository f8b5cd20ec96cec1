"""Attention of many queries over the same keys on CPU, through oneDNN's matrix products.

Torch's flash kernel multiplies small tiles through a library that is slow on some CPUs. Where no mask is needed and the
queries of one KV head are many, the scores of a block of keys are one product, and the weighted sum of its values
another; blocks are joined with a running maximum (online softmax, Milakov and Gimelshein 2018). A column of ones beside
the values sums the weights on the way.
"""

from __future__ import annotations

import functools

import torch

from runtime.attention.cpu_kernel import flash

# Queries of one KV head from which this is faster than the flash kernel.
MIN_QUERIES = 180
# Keys whose scores are in memory at a time.
BLOCK = 512


def wide(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[H, T, D]` and natural log-sum-exp `[H, T]`.

    query `[H, T, D]`, key and value `[H, K, D]` with K >= 1, all float32.
    """
    heads, count, dim = query.shape
    keys = key.contiguous()
    weighed = value.new_ones(heads, dim + 1, key.shape[1])
    weighed[:, :dim] = value.transpose(1, 2)
    out = query.new_empty(heads, count, dim)
    lse = query.new_empty(heads, count)
    for head in range(heads):
        scaled = query[head] * scale
        total = query.new_zeros(count, dim + 1)
        peak = query.new_full((count, 1), float("-inf"))
        for begin in range(0, key.shape[1], BLOCK):
            scores = _product(scaled, keys[head, begin : begin + BLOCK])
            highest = scores.amax(dim=1, keepdim=True)
            sums = _product(scores.sub_(highest).exp_(), weighed[head, :, begin : begin + BLOCK].contiguous())
            before, peak = peak, torch.maximum(peak, highest)
            total.mul_((before - peak).exp_()).addcmul_(sums, (highest - peak).exp_())
        out[head] = total[:, :dim] / total[:, dim:]
        lse[head] = (peak + total[:, dim:].log()).squeeze(1)
    return out, lse


def supports_wide(query: torch.Tensor) -> bool:
    """Whether queries `[H, T, D]` are better attended by `wide`."""
    return query.dtype == torch.float32 and query.shape[1] >= MIN_QUERIES and _works()


@functools.cache
def _works() -> bool:
    if not torch._C._has_mkldnn:
        return False
    query, key, value = torch.linspace(-3, 3, 3 * 2 * 96 * 16).sin().view(3, 2, 96, 16)
    with torch.inference_mode():
        wanted, wanted_lse = flash(query[None], key[None], value[None], 0.25)
        try:
            out, lse = wide(query, key, value, 0.25)
        except RuntimeError:
            return False
    return torch.allclose(out, wanted[0], atol=1e-5) and torch.allclose(lse, wanted_lse[0], atol=1e-5)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x weight^T`; oneDNN wants a weight without gaps and is very slow with any other."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out
