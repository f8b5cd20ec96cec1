"""How much memory a GPU can still give."""

from __future__ import annotations

import torch


def free_gpu_memory(device: str | torch.device) -> int:
    """Bytes free on a CUDA device, those counted that torch's allocator holds and nothing uses.

    Joining a model's linear layers leaves it with what the single ones took, which no larger tensor fits into.
    """
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
