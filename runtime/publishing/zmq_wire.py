"""KV events as vLLM's readers decode them: a msgpack array `[timestamp, events, data_parallel_rank]`.

An event is a map tagged with `type`, as current vLLM and SGLang send it, or an array tagged by its first element, as
older ones did and some routers still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from radix import BlockStored
from runtime.publishing.kv_events import AllBlocksCleared, CacheEvent, medium_in

Layout: TypeAlias = Literal["map", "array"]

# One engine, one cache: there is no second data-parallel rank.
_RANK = 0
_encoder = msgspec.msgpack.Encoder()


def encode_batch(timestamp: float, events: Iterable[CacheEvent], medium: str, layout: Layout) -> bytes:
    """The payload of one message; `timestamp` in seconds since 1970."""
    tagged = [_fields(event, medium) for event in events]
    if layout == "array":
        return _encoder.encode([timestamp, [list(event.values()) for event in tagged], _RANK])
    return _encoder.encode([timestamp, [_without_defaults(event) for event in tagged], _RANK])


def _fields(event: CacheEvent, medium: str) -> dict[str, Any]:
    if isinstance(event, AllBlocksCleared):
        return {"type": "AllBlocksCleared"}
    if isinstance(event, BlockStored):
        return {
            "type": "BlockStored",
            "block_hashes": event.block_hashes,
            "parent_block_hash": event.parent_hash,
            "token_ids": event.token_ids.tolist(),
            "block_size": event.block_size,
            "lora_id": None,
            "medium": medium_in(event.tier, medium),
            "lora_name": event.namespace.adapter,
            "extra_keys": _extra_keys(event),
        }
    return {"type": "BlockRemoved", "block_hashes": event.block_hashes, "medium": medium_in(event.tier, medium)}


def _without_defaults(event: dict[str, Any]) -> dict[str, Any]:
    # The only field of these that vLLM gives a default.
    if event.get("extra_keys", True) is None:
        del event["extra_keys"]
    return event


def _extra_keys(event: BlockStored) -> list[tuple[str, ...] | None] | None:
    """What enters each block's hash beside its tokens: the adapter everywhere, the salt in a path's first block."""
    space = event.namespace
    everywhere = (space.adapter,) if space.adapter is not None else ()
    first = everywhere if event.parent_hash is not None or space.salt is None else (*everywhere, space.salt)
    if not everywhere and not first:
        return None
    return [first or None] + [everywhere or None] * (len(event.block_hashes) - 1)
