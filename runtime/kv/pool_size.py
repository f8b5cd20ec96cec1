"""How many KV blocks a runtime takes when it was told bytes, or nothing."""

from __future__ import annotations

from runtime.config import ServeConfig
from runtime.kv.free_memory import free_memory, machine_memory
from runtime.kv.gpu_memory import free_gpu_memory
from runtime.models.loaded_model import ModelInfo
from runtime.settings import BadConfig

GIB = 2**30
CPU_DEFAULT = 2 * GIB
MIN_BLOCKS = 2
# What a step's activations, the tree and everything else beside the pool may still need, and a share of what is free
# because it is free now and others run here too.
WORK = 384 * 2**20
MARGIN = 0.05


def pool_blocks(config: ServeConfig, info: ModelInfo) -> int:
    """Blocks in the KV pool, the model being loaded.

    Raises BadConfig when the memory holds too few, or less is free, with a margin, than was asked for.
    """
    block_bytes = config.block_size * info.kv_bytes_per_token
    room = spare_memory(info.device)
    if config.num_blocks is not None:
        _check_room("num_blocks", config.num_blocks * block_bytes, room, info)
        return config.num_blocks
    memory = config.kv_memory if config.kv_memory is not None else min(default_memory(info.device), room)
    blocks = (room if memory == "auto" else memory) // block_bytes
    if blocks < MIN_BLOCKS:
        raise BadConfig(
            "kv_memory",
            f"{memory} bytes: this model needs at least {MIN_BLOCKS} blocks of {block_bytes} bytes, "
            f"and {room} bytes are free",
        )
    _check_room("kv_memory", blocks * block_bytes, room, info)
    return blocks


def check_host_cache(config: ServeConfig, info: ModelInfo, num_blocks: int) -> None:
    """Raise BadConfig when the host tier would take more than is free beside the pool."""
    beside = 0 if info.device.startswith("cuda") else num_blocks * config.block_size * info.kv_bytes_per_token
    room = max(0, spare_memory("cpu") - beside)
    if config.host_cache > room:
        raise BadConfig(
            "host_cache", f"{config.host_cache / GIB:.1f} GiB: {room / GIB:.1f} GiB are to spare beside the pool"
        )


def default_memory(device: str) -> int:
    """Bytes for the pool where none were named: half of what a GPU has free, else 2 GiB or a quarter of the memory."""
    if device.startswith("cuda"):
        return free_gpu_memory(device) // 2
    return min(CPU_DEFAULT, machine_memory() // 4)


def spare_memory(device: str) -> int:
    """Bytes that a pool may take: what is free now, less the margin and what else a step needs."""
    free = free_gpu_memory(device) if device.startswith("cuda") else free_memory()
    return max(0, int(free * (1 - MARGIN)) - WORK)


def _check_room(field: str, wanted: int, room: int, info: ModelInfo) -> None:
    if wanted > room:
        raise BadConfig(
            field,
            f"the pool would take {wanted / GIB:.1f} GiB: {info.device} has {room / GIB:.1f} GiB to spare, which is "
            f"{room // info.kv_bytes_per_token} tokens at {info.kv_dtype}",
        )
