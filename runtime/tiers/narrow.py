"""A pool as tiers see it that keep less of its numbers than it does.

What comes back through them is not what left, so it may change answers: nothing does that unless it is asked for, and
the cache keys of a runtime that does are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from radix.kv_bytes import HALVES, Half
from runtime.errors import InvalidRequest
from runtime.kv.kv_pool import KVPool, LayerKV
from runtime.kv.packed_view import PackedView
from runtime.kv.precision import DENSE, KVFormat, LayerShape
from runtime.kv.rotation import rotate
from runtime.kv.settings import check_precision
from runtime.models.fingerprint import kept_fingerprint
from runtime.models.loaded_model import LoadedModel


class BlockStore(Protocol):
    """Whole blocks of KV as rows of bytes; see `KVPool`."""

    num_blocks: int
    block_size: int
    device: torch.device

    @property
    def block_bytes(self) -> int: ...

    def export_blocks(self, blocks: Sequence[int] | np.ndarray, out: torch.Tensor) -> None: ...

    def import_blocks(self, blocks: Sequence[int] | np.ndarray, data: torch.Tensor) -> None: ...


def kept_format(own: KVFormat, name: str) -> KVFormat | None:
    """The format of tiers at a precision, behind a pool of format `own`; None where that is the pool's own.

    Raises InvalidRequest for a name that no precision has.
    """
    check_precision("host_kv_dtype", name)
    wanted = own if name == "auto" else KVFormat(name, name)
    return None if wanted == own else wanted


def behind(loaded: LoadedModel, name: str) -> LoadedModel:
    """The model with the precision of its tiers in its cache keys. Raises InvalidRequest."""
    kept = kept_format(loaded.kv_format, name)
    if kept is None:
        return loaded
    info = replace(loaded.info, host_kv_dtype=kept.name, fingerprint=kept_fingerprint(loaded.info.fingerprint, kept))
    return replace(loaded, info=info)


class NarrowPool:
    """Narrows blocks on their way out of a pool, and widens them on their way in.

    Raises InvalidRequest where a block would not take fewer bytes.
    """

    def __init__(self, pool: KVPool, kept: KVFormat) -> None:
        self.num_blocks, self.block_size, self.device = pool.num_blocks, pool.block_size, pool.device
        self._pool = pool
        self.kept = kept
        shapes = [
            LayerShape(layer, kv.kv_heads, kv.keys.shape[-1], kv.values.shape[-1]) for layer, kv in pool.layers.items()
        ]
        self.block_bytes = kept.bytes_per_token(shapes) * pool.block_size
        if self.block_bytes >= pool.block_bytes:
            limit = f"takes {self.block_bytes} bytes a block: the pool itself takes {pool.block_bytes}"
            raise InvalidRequest("host_kv_dtype", kept.name, limit)

    def export_blocks(self, blocks: Sequence[int] | np.ndarray, out: torch.Tensor) -> None:
        """Narrow whole blocks to the rows of `out`: uint8 `[len(blocks), block_bytes]`, on any device."""
        where = torch.as_tensor(np.asarray(blocks, dtype=np.int64), device=self.device)
        at = 0
        with torch.inference_mode():
            for layer, half, held, turned in self._halves():
                numbers = held.index_select(0, where)
                raw = self._narrowed(numbers, layer, half, turned).flatten(1)
                out[:, at : at + raw.shape[1]].copy_(raw)
                at += raw.shape[1]

    def import_blocks(self, blocks: Sequence[int] | np.ndarray, data: torch.Tensor) -> None:
        """Set blocks, each named once, to what `data` holds of them, as `export_blocks` wrote it."""
        where = torch.as_tensor(np.asarray(blocks, dtype=np.int64), device=self.device)
        at = 0
        with torch.inference_mode():
            for layer, half, held, turned in self._halves():
                _, size, heads, dim = held.shape
                packing = self.kept.packing(layer, half)
                record = packing.record_bytes(dim) if packing is not None else dim * self._dense(layer, half).itemsize
                step = size * heads * record
                raw = data[:, at : at + step].to(self.device).reshape(-1, size, heads, record)
                at += step
                numbers = self._widened(raw, dim, layer, half, turned)
                held.index_copy_(0, where, numbers if isinstance(held, PackedView) else numbers.to(held.dtype))

    def _halves(self) -> Iterator[tuple[int, Half, torch.Tensor | PackedView, bool]]:
        """Each layer's keys and values, `[blocks, block_size, kv_heads, dim]`, and whether they lie turned."""
        for layer in sorted(self._pool.layers):
            kv: LayerKV = self._pool.layers[layer]
            for half in HALVES:
                keys = half == "keys"
                yield layer, half, kv.keys if keys else kv.values, kv.rotate_keys if keys else kv.rotate_values

    def _dense(self, layer: int, half: Half) -> torch.dtype:
        return DENSE[self.kept.at(layer, half)]

    def _narrowed(self, numbers: torch.Tensor, layer: int, half: Half, turned: bool) -> torch.Tensor:
        packing = self.kept.packing(layer, half)
        turns = packing is not None and packing.rotates
        numbers = rotate(numbers.float()) if turns != turned else numbers
        if packing is not None:
            return packing.encode(numbers.float())
        return numbers.to(self._dense(layer, half)).contiguous().view(torch.uint8)

    def _widened(self, raw: torch.Tensor, dim: int, layer: int, half: Half, turned: bool) -> torch.Tensor:
        packing = self.kept.packing(layer, half)
        turns = packing is not None and packing.rotates
        raw = raw.contiguous()
        numbers = packing.decode(raw, dim) if packing is not None else raw.view(self._dense(layer, half)).float()
        return rotate(numbers) if turns != turned else numbers
