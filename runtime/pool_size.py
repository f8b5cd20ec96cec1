"""How many KV blocks a runtime takes when it was told bytes, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from runtime.config import ServeConfig
from runtime.loaded_model import ModelInfo
from runtime.settings import BadConfig

GIB = 2**30
CPU_DEFAULT = 2 * GIB
MIN_BLOCKS = 2

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def pool_blocks(config: ServeConfig, info: ModelInfo) -> int:
    """Blocks in the KV pool. Raises BadConfig when the memory holds too few, or the machine has less than asked for."""
    block_bytes = config.block_size * info.kv_bytes_per_token
    if config.num_blocks is not None:
        _check_available("num_blocks", config.num_blocks * block_bytes, info.device)
        return config.num_blocks
    memory = config.kv_memory if config.kv_memory is not None else default_memory(info.device)
    blocks = memory // block_bytes
    if blocks < MIN_BLOCKS:
        raise BadConfig(
            "kv_memory",
            f"{memory} bytes: this model needs at least {MIN_BLOCKS} blocks of {block_bytes} bytes",
        )
    _check_available("kv_memory", blocks * block_bytes, info.device)
    return blocks


def default_memory(device: str) -> int:
    """Bytes for the pool where none were named: half of what a GPU has free, else 2 GiB or a quarter of the memory."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0] // 2
    return min(CPU_DEFAULT, machine_memory() // 4)


def machine_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or its container's limit."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            limit = min(limit, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return limit


def _check_available(field: str, wanted: int, device: str) -> None:
    available = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else machine_memory()
    if wanted > available:
        raise BadConfig(field, f"the pool would take {wanted / GIB:.1f} GiB: {device} has {available / GIB:.1f} GiB")
