"""A decode step whose tensors stay where they are, so that a CUDA graph of it can be replayed with new numbers.

Rows beyond the batch are padding: they write to a block that no sequence owns and have no KV to attend to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runtime.attention.paged_layout import PagedLayout, pack, split
from runtime.execution.batch import BatchItem, StepPlan

_ID_BYTES, _INDEX_BYTES = 8, 4


class StaticStep(StepPlan):
    """Room for `batch` rows of one token with up to `width` blocks each.

    The tensors are those of StepPlan and of its paged layout, all views of one buffer on the device; `fill` writes a
    step's numbers to pinned memory and sends them there in one copy.
    """

    def __init__(self, batch: int, width: int, block_size: int, trash_block: int, device: torch.device) -> None:
        # Not StepPlan's: there are no items yet, and no tensor may be made anew when they come.
        self.device = device
        self.block_size = block_size
        self.rows = []
        self.total = batch
        self.batch = batch
        self.width = width
        self._trash_block = trash_block
        size = 3 * batch * _ID_BYTES + len(pack(batch, width)) * _INDEX_BYTES
        cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=cuda)
        self._there = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        self._ids, (self._cu_q, self._kv_lens, self._cu_kv, self._table) = _parts(self._host.numpy(), batch, width)
        self._cu_q[:] = np.arange(batch + 1)
        ids, layout = _parts(self._there, batch, width)
        self.input_ids, self.position_ids, self.write_slots = ids[0:1], ids[1:2], ids[2]
        self.logit_rows = torch.arange(batch, device=device)
        self._derived = {"paged": PagedLayout(*layout, np.ones(batch, dtype=np.int64), width * block_size)}
        self.count = 0
        self._pad(0)
        self._send()

    def fill(self, items: Sequence[BatchItem], num_blocks: int) -> None:
        """Make this the step of these items: at most `batch`, of one token each, with at most `width` blocks.

        Raises InvalidRequest as StepPlan does.
        """
        tables = [self._cut_table(index, item, item.start + 1) for index, item in enumerate(items)]
        self._join_tables(tables, num_blocks)
        if self._sent is not None:
            # The copy before this one may still be reading.
            self._sent.synchronize()
        self.count = len(items)
        tokens, positions, slots = self._ids
        for index, (item, table) in enumerate(zip(items, tables, strict=True)):
            tokens[index] = item.tokens[0]
            positions[index] = item.start
            slots[index] = int(table[-1]) * self.block_size + item.start % self.block_size
            self._kv_lens[index] = item.start + 1
            self._table[index, : len(table)] = table
            self._table[index, len(table) :] = table[0]
        self._pad(self.count)
        self._send()

    def _pad(self, begin: int) -> None:
        tokens, positions, slots = self._ids
        tokens[begin:] = 0
        positions[begin:] = 0
        slots[begin:] = self._trash_block * self.block_size
        self._kv_lens[begin:] = 0
        self._table[begin:] = self._trash_block
        self._cu_kv[1:] = np.cumsum(self._kv_lens)

    def _send(self) -> None:
        self._there.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self.device))


def _parts(buffer: Any, batch: int, width: int) -> tuple[Any, tuple[Any, Any, Any, Any]]:
    """int64 `[3, batch]` of ids, positions and slots, and the paged layout's int32 parts, out of bytes."""
    ids = 3 * batch * _ID_BYTES
    wide, narrow = (torch.int64, torch.int32) if isinstance(buffer, torch.Tensor) else (np.int64, np.int32)
    return buffer[:ids].view(wide).reshape(3, batch), split(buffer[ids:].view(narrow), batch, width)
