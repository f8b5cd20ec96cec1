"""Packed keys or values, read and written as the numbers that they stand for."""

from __future__ import annotations

from typing import Any

import torch

from runtime.kv.packing import Packing


class PackedView:
    """A tensor `[..., kv_heads, dim]` of float32 that lies as uint8 records `[..., kv_heads, record_bytes]`.

    It has what readers and writers of a pool ask of a tensor: a selection is unpacked when it is read, and packed when
    it is written. Kernels that read records where they lie take `records` and `packing`.
    """

    dtype = torch.float32

    def __init__(self, records: torch.Tensor, packing: Packing, dim: int) -> None:
        self.records = records
        self.packing = packing
        self.shape = torch.Size((*records.shape[:-1], dim))

    @property
    def device(self) -> torch.device:
        return self.records.device

    def flatten(self, first: int, last: int) -> PackedView:
        return PackedView(self.records.flatten(first, last), self.packing, self.shape[-1])

    def index_select(self, axis: int, index: torch.Tensor) -> torch.Tensor:
        return self._decode(self.records.index_select(axis, index))

    def index_copy_(self, axis: int, index: torch.Tensor, numbers: torch.Tensor) -> None:
        self.records.index_copy_(axis, index, self.packing.encode(numbers.float()))

    def __getitem__(self, where: Any) -> torch.Tensor:
        return self._decode(self.records[where])

    def __setitem__(self, where: Any, numbers: torch.Tensor | float) -> None:
        shape = (*self.records[where].shape[:-1], self.shape[-1])
        wide = torch.as_tensor(numbers, dtype=torch.float32, device=self.device)
        self.records[where] = self.packing.encode(wide.expand(shape).contiguous())

    def _decode(self, records: torch.Tensor) -> torch.Tensor:
        return self.packing.decode(records, self.shape[-1])
