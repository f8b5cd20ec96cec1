"""The tiers of an engine, if it is to have any."""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine_config import EngineConfig
from runtime.kv.kv_pool import KVPool
from runtime.models.fingerprint import kept_fingerprint
from runtime.models.loaded_model import ModelInfo
from runtime.tiers.build import build_tiers
from runtime.tiers.narrow import BlockStore, NarrowPool, kept_format
from runtime.tiers.slot_file import Owner
from runtime.tiers.tiers import Tiers


def open_tiers(config: EngineConfig, pool: KVPool, info: ModelInfo, wake: Callable[[], None]) -> Tiers | None:
    """Open what the configuration asks for; None where it asks for nothing. Raises InvalidRequest."""
    if not config.tiers:
        return None
    kept = kept_format(pool.format, config.tiers.kv_dtype)
    behind: BlockStore = pool if kept is None else NarrowPool(pool, kept)
    fingerprint, kv_dtype = info.fingerprint, info.kv_dtype
    if kept is not None:
        fingerprint, kv_dtype = kept_fingerprint(fingerprint, kept), kept.name
    owner = Owner(fingerprint, info.name, kv_dtype, config.block_size, behind.block_bytes)
    # Room for a step's worth of prompt and a block for each that decodes.
    ahead = -(-config.max_batch_tokens // config.block_size) + config.max_running
    return Tiers(build_tiers(config.tiers, behind, owner), behind, ahead=ahead, wake=wake)
