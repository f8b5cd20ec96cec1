"""How a step's keys and values come into the pool: turned where the pool keeps them so, packed, and put in their slots.

The native writer does in one pass what takes a dozen operations of torch a layer. It serves once it wrote, for a few
numbers, the bytes of a TorchWriter that turns by sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from radix.kv_bytes import HALVES
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import LayerShape
from runtime.kv.rotation import rotate, rotate_by_sums
from runtime.native import NativeUnavailable
from runtime.native.kv_writer import NativeWriter

log = logging.getLogger(__name__)


class KVWriter(Protocol):
    """Writes to one pool."""

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Set slots (int64 `[T]`) of a layer to key `[T, kv_heads, key_dim]` and value `[T, kv_heads, value_dim]`."""
        ...

    def turn(self, heads: torch.Tensor) -> torch.Tensor:
        """`[..., heads, dim]` turned as keys and values are, see runtime.kv.rotation; its own inverse."""
        ...


class TorchWriter:
    """Any device and precision."""

    def __init__(self, pool: KVPool, turn: Callable[[torch.Tensor], torch.Tensor] = rotate) -> None:
        self._layers = pool.layers
        self.turn = turn

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """See KVWriter."""
        kv = self._layers[layer]
        if kv.rotate_keys:
            key = self.turn(key)
        if kv.rotate_values:
            value = self.turn(value)
        kv.key_slots.index_copy_(0, slots, key.to(kv.key_slots.dtype))
        kv.value_slots.index_copy_(0, slots, value.to(kv.value_slots.dtype))


def make_writer(pool: KVPool, *, row_invariant: bool) -> KVWriter:
    """The native writer where it serves, else torch's.

    row_invariant: whether what is written must not depend, to the last bit, on what is written beside it.
    """
    if pool.device.type == "cpu":
        why = native_obstacle(pool)
        if why is None:
            return NativeWriter(pool)
        log.info("keys and values are written through torch: %s", why)
    return TorchWriter(pool, rotate_by_sums if row_invariant else rotate)


def native_obstacle(pool: KVPool) -> str | None:
    """Why the native writer does not serve a pool; None when it does, which takes a compiler and the bytes of torch."""
    try:
        for shape in _kinds(pool):
            random = torch.Generator().manual_seed(4)
            key, value = (
                torch.randn(_TRIED, shape.kv_heads, dim, generator=random) for dim in (shape.key_dim, shape.value_dim)
            )
            tried = [KVPool([shape], 1, _TRIED, dtype=pool.format, device="cpu") for _ in range(2)]
            slots = torch.arange(_TRIED - 1, -1, -1)
            for writer in (TorchWriter(tried[0], rotate_by_sums), NativeWriter(tried[1])):
                writer.write(shape.layer, slots, key, value)
            wanted, found = (one.layers[shape.layer].tensors for one in tried)
            if not all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True)):
                return f"it writes other bytes to layer {shape.layer}"
    except NativeUnavailable as why:
        return str(why)
    return None


# Tokens that are written to see whether the bytes are right.
_TRIED = 8


def _kinds(pool: KVPool) -> list[LayerShape]:
    """One layer of each kind that the pool has."""
    found: dict[object, LayerShape] = {}
    for index, kv in pool.layers.items():
        shape = LayerShape(index, kv.kv_heads, kv.keys.shape[-1], kv.values.shape[-1])
        precisions = tuple(pool.format.at(index, half) for half in HALVES)
        found.setdefault((precisions, shape.kv_heads, shape.key_dim, shape.value_dim), shape)
    return list(found.values())
