"""The tiers of an engine, if it is to have any."""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine_config import EngineConfig
from runtime.kv_pool import KVPool
from runtime.loaded_model import ModelInfo
from runtime.tiers.build import build_tiers
from runtime.tiers.slot_file import Owner
from runtime.tiers.tiers import Tiers


def open_tiers(config: EngineConfig, pool: KVPool, info: ModelInfo, wake: Callable[[], None]) -> Tiers | None:
    """Open what the configuration asks for; None where it asks for nothing. Raises InvalidRequest."""
    if not config.tiers:
        return None
    owner = Owner(info.fingerprint, info.name, info.kv_dtype, config.block_size, pool.block_bytes)
    # Room for a step's worth of prompt and a block for each that decodes.
    ahead = -(-config.max_batch_tokens // config.block_size) + config.max_running
    return Tiers(build_tiers(config.tiers, pool, owner), pool, ahead=ahead, wake=wake)
