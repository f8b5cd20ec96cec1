"""How the kernels number what a pool keeps, as records.h does."""

from __future__ import annotations

import torch

from runtime.kv.packed_view import PackedView

_DENSE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def kept(half: torch.Tensor | PackedView) -> tuple[int, int]:
    """Kind and bytes of one head's keys or values."""
    if isinstance(half, PackedView):
        return half.packing.code, half.records.shape[-1]
    return _DENSE[half.dtype], half.shape[-1] * half.dtype.itemsize
