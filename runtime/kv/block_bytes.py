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

    block_bytes: of all layers.
    """

    def __init__(self, tensors: Mapping[int, Sequence[torch.Tensor]]) -> None:
        # Where among a block's bytes those of each tensor are.
        self._parts: list[tuple[slice, torch.Tensor]] = []
        at = 0
        for layer in sorted(tensors):
            for tensor in tensors[layer]:
                raw = tensor.flatten(1).view(torch.uint8)
                self._parts.append((slice(at, at + raw.shape[1]), raw))
                at += raw.shape[1]
        self.block_bytes = at
        first = self._parts[0][1]
        self._num_blocks, self._device = first.shape[0], first.device

    def read(self, blocks: BlockIds, out: torch.Tensor) -> None:
        """Copy blocks to the rows of `out`, uint8 `[len(blocks), block_bytes]` on any device. Raises InvalidRequest."""
        where = self._checked(blocks, out, "out")
        for span, raw in self._parts:
            out[:, span].copy_(raw.index_select(0, where))

    def write(self, blocks: BlockIds, data: torch.Tensor) -> None:
        """Set blocks, each named once, from the rows of `data`, laid out as `read` does. Raises InvalidRequest."""
        where = self._checked(blocks, data, "data")
        for span, raw in self._parts:
            raw.index_copy_(0, where, data[:, span].to(raw.device))

    def _checked(self, blocks: BlockIds, rows: torch.Tensor, field: str) -> torch.Tensor:
        ids = np.asarray(blocks, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self._num_blocks):
            raise InvalidRequest("blocks", ids, f"must be blocks from 0 to {self._num_blocks - 1}")
        if rows.dtype != torch.uint8 or rows.shape != (len(ids), self.block_bytes):
            raise InvalidRequest(
                field, f"{rows.dtype} {tuple(rows.shape)}", f"must be uint8 ({len(ids)}, {self.block_bytes})"
            )
        return torch.from_numpy(ids).to(self._device)
