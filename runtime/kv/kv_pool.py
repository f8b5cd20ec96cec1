"""The paged KV tensors: where the keys and values of every cached token lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from radix import Copy
from radix.kv_bytes import HALVES, Half
from runtime.errors import InvalidRequest
from runtime.kv.block_bytes import BlockBytes, BlockIds
from runtime.kv.huge_pages import ask_for_huge_pages
from runtime.kv.packed_view import PackedView
from runtime.kv.precision import DENSE, KVFormat, LayerShape


@dataclass(frozen=True)
class LayerKV:
    """One layer's part of the pool.

    `keys` is `[blocks, block_size, kv_heads, key_dim]`, `values` ends in `value_dim`. The `_slots` views join the first
    two axes: slot `block * block_size + offset`. What is kept below 16 bits is a PackedView. rotate_keys,
    rotate_values: whether what is written is turned first (runtime.kv.rotation).
    """

    keys: Any
    values: Any
    key_slots: Any
    value_slots: Any
    rotate_keys: bool = False
    rotate_values: bool = False

    @property
    def block_size(self) -> int:
        return int(self.keys.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.keys.shape[2])

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What lies in memory: `[blocks, block_size, kv_heads, dim]`, or records of bytes in place of numbers."""
        keys, values = (half.records if isinstance(half, PackedView) else half for half in (self.keys, self.values))
        return keys, values


class KVPool:
    """K and V tensors of every layer, shared by all sequences and addressed by block id.

    The pool's precision and device are its own business: writers and readers convert. `fill` is what unwritten slots
    hold, or NaN where it is not 0; tests fill with NaN to prove that no answer ever reads one. Raises InvalidRequest
    when the memory is not there.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype | KVFormat,
        device: torch.device | str,
        fill: float = 0.0,
    ) -> None:
        if num_blocks < 1:
            raise InvalidRequest("num_blocks", num_blocks, "must be at least 1")
        if block_size < 1:
            raise InvalidRequest("block_size", block_size, "must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.format = KVFormat.dense(dtype) if isinstance(dtype, torch.dtype) else dtype
        self.device = torch.device(device)
        self.bytes_per_token = self.format.bytes_per_token(shapes)
        try:
            self.layers = {shape.layer: self._allocate(shape, fill) for shape in shapes}
        except (RuntimeError, MemoryError) as error:
            gib = self.bytes_per_token * num_blocks * block_size / 2**30
            raise InvalidRequest(
                "num_blocks",
                num_blocks,
                f"the pool would take {gib:.1f} GiB on {self.device}, which it lacks",
            ) from error
        self._bytes = BlockBytes({index: kv.tensors for index, kv in self.layers.items()})

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self._bytes.block_bytes

    def export_blocks(self, blocks: BlockIds, out: torch.Tensor) -> None:
        """Copy whole blocks, whatever the pool's precision, to the rows of `out`: uint8 `[len(blocks), block_bytes]`.

        out may be on another device. Raises InvalidRequest.
        """
        self._bytes.read(blocks, out)

    def import_blocks(self, blocks: BlockIds, data: torch.Tensor) -> None:
        """Set blocks, each named once, from rows that a pool of the same shapes and precision exported.

        Raises InvalidRequest.
        """
        with torch.inference_mode():
            self._bytes.write(blocks, data)

    def _allocate(self, shape: LayerShape, fill: float) -> LayerKV:
        keys, values = (self._half(shape, half, fill) for half in HALVES)
        packings = (self.format.packing(shape.layer, half) for half in HALVES)
        turned = (packing is not None and packing.rotates for packing in packings)
        return LayerKV(keys, values, keys.flatten(0, 1), values.flatten(0, 1), *turned)

    def _half(self, shape: LayerShape, half: Half, fill: float) -> torch.Tensor | PackedView:
        size = (self.num_blocks, self.block_size, shape.kv_heads)
        dim, packing = shape.dim(half), self.format.packing(shape.layer, half)
        if packing is not None:
            # All ones are NaN as a scale.
            records = self._filled((*size, packing.record_bytes(dim)), torch.uint8, 255 if fill else 0)
            return PackedView(records, packing, dim)
        return self._filled((*size, dim), DENSE[self.format.at(shape.layer, half)], fill)

    def _filled(self, size: tuple[int, ...], dtype: torch.dtype, fill: float) -> torch.Tensor:
        empty = torch.empty(size, dtype=dtype, device=self.device)
        ask_for_huge_pages(empty)
        return empty.fill_(fill)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy the first `tokens` slots of block `src` to block `dst`, in order, in every layer.

        Raises InvalidRequest when a block or a count lies outside the pool.
        """
        batch: list[Copy] = []
        written: set[int] = set()
        for copy in copies:
            self._check(copy)
            # One gather reads everything before it writes anything, so a copy of a copy starts a new one.
            if copy.src in written or copy.dst in written:
                self._copy_at_once(batch)
                batch, written = [], set()
            batch.append(copy)
            written.add(copy.dst)
        self._copy_at_once(batch)

    def _check(self, copy: Copy) -> None:
        for field, block in (("src", copy.src), ("dst", copy.dst)):
            if not 0 <= block < self.num_blocks:
                raise InvalidRequest(f"copy.{field}", block, f"must be a block from 0 to {self.num_blocks - 1}")
        if not 0 <= copy.tokens <= self.block_size:
            raise InvalidRequest("copy.tokens", copy.tokens, f"must be from 0 to block_size {self.block_size}")

    def _copy_at_once(self, copies: list[Copy]) -> None:
        size = self.block_size
        src = [copy.src * size + i for copy in copies for i in range(copy.tokens)]
        if not src:
            return
        dst = [copy.dst * size + i for copy in copies for i in range(copy.tokens)]
        from_slots = torch.tensor(src, device=self.device)
        to_slots = torch.tensor(dst, device=self.device)
        with torch.inference_mode():
            for layer in self.layers.values():
                for tensor in layer.tensors:
                    slots = tensor.flatten(0, 1)
                    slots[to_slots] = slots[from_slots]
