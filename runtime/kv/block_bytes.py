"""A block of the pool as contiguous bytes, for whoever keeps it elsewhere.

A block's bytes are its layers in ascending order, and of each layer its tensors in the pool's order, each as it lies in
memory. They mean something only to a pool of the same shapes, block size and precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from runtime.errors import InvalidRequest

BlockIds = Sequence[int] | np.ndarray


class BlockBytes:
    """Reads and writes whole blocks of tensors `[blocks, ...]`, given for each layer.

    block_bytes: of all layers. spans: where each layer's bytes are among a block's, so that a layer can travel alone.
    """

    def __init__(self, tensors: Mapping[int, Sequence[torch.Tensor]]) -> None:
        self._parts: dict[int, list[tuple[slice, torch.Tensor]]] = {}
        self.spans: dict[int, slice] = {}
        at = 0
        for layer in sorted(tensors):
            begin = at
            parts = []
            for tensor in tensors[layer]:
                raw = tensor.flatten(1).view(torch.uint8)
                parts.append((slice(at, at + raw.shape[1]), raw))
                at += raw.shape[1]
            self._parts[layer] = parts
            self.spans[layer] = slice(begin, at)
        self.block_bytes = at
        first = next(iter(self._parts.values()))[0][1]
        self._num_blocks, self._device = first.shape[0], first.device

    def read(self, blocks: BlockIds, out: torch.Tensor, layers: Sequence[int] | None = None) -> None:
        """Copy blocks to the rows of `out`, uint8 `[len(blocks), block_bytes]` on any device.

        layers: only these; the other columns of `out` stay as they are. Raises InvalidRequest.
        """
        where = self._checked(blocks, out, "out")
        for span, raw in self._selected(layers):
            out[:, span].copy_(raw.index_select(0, where))

    def write(self, blocks: BlockIds, data: torch.Tensor, layers: Sequence[int] | None = None) -> None:
        """Set blocks, each named once, from the rows of `data`, laid out as `read` does. Raises InvalidRequest."""
        where = self._checked(blocks, data, "data")
        for span, raw in self._selected(layers):
            raw.index_copy_(0, where, data[:, span].to(raw.device))

    def _selected(self, layers: Sequence[int] | None) -> list[tuple[slice, torch.Tensor]]:
        for layer in layers or ():
            if layer not in self._parts:
                raise InvalidRequest("layers", layer, f"must be among the {len(self._parts)} layers that cache")
        return [part for layer in (self._parts if layers is None else layers) for part in self._parts[layer]]

    def _checked(self, blocks: BlockIds, rows: torch.Tensor, field: str) -> torch.Tensor:
        ids = np.asarray(blocks, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self._num_blocks):
            raise InvalidRequest("blocks", ids, f"must be blocks from 0 to {self._num_blocks - 1}")
        if rows.dtype != torch.uint8 or rows.shape != (len(ids), self.block_bytes):
            raise InvalidRequest(
                field, f"{rows.dtype} {tuple(rows.shape)}", f"must be uint8 ({len(ids)}, {self.block_bytes})"
            )
        return torch.from_numpy(ids).to(self._device)
