"""Runs the model's forward pass for a ragged batch against the paged KV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from radix import Copy
from runtime.attention import make_backend
from runtime.attention.hook import PagedStep
from runtime.batch import BatchItem, StepPlan
from runtime.errors import InvalidRequest
from runtime.kv_pool import KVPool
from runtime.loaded_model import LoadedModel


class ModelRunner:
    """A loaded model together with its KV pool.

    Not thread-safe: one thread drives it. A forward pass that raises leaves the runner usable; the slots that it was to
    write hold nothing that may be committed.
    """

    def __init__(self, loaded: LoadedModel, num_blocks: int, block_size: int, *, fill: float = 0.0) -> None:
        self.loaded = loaded
        self.pool = KVPool(
            loaded.layers, num_blocks, block_size, dtype=loaded.kv_dtype, device=loaded.model.device, fill=fill
        )
        self.backend = make_backend(loaded.info.attention_backend)

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        """Carry out the store's copies; must happen before the forward pass that writes behind them."""
        self.pool.copy(copies)

    def forward(self, items: Sequence[BatchItem]) -> torch.Tensor:
        """Compute the items' tokens and write their KV.

        Returns float32 logits `[R, vocab]` of the last `logit_rows` tokens of each item, in item order, each item's in
        the order of its tokens. Raises InvalidRequest when an item names tokens or blocks that do not exist, or wants
        more rows than it has tokens.
        """
        plan = self.prepare(items)
        return self.run(plan, plan.logit_rows)

    def prepare(self, items: Sequence[BatchItem]) -> StepPlan:
        """Lay out a step for `run`. Raises as `forward` does."""
        self._check_tokens(items)
        return StepPlan(items, self.pool.block_size, self.pool.num_blocks, self.pool.device)

    def run(self, plan: StepPlan, rows: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[len(rows), vocab]` of packed rows of a plan; writes the KV of all of the plan's tokens."""
        with torch.inference_mode():
            return self.loaded.forward(plan, PagedStep(self.pool, plan, self.backend), rows).float()

    def _check_tokens(self, items: Sequence[BatchItem]) -> None:
        vocab = self.loaded.info.vocab_size
        for index, item in enumerate(items):
            tokens = np.asarray(item.tokens)
            if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocab):
                raise InvalidRequest(f"items[{index}].tokens", tokens, f"token ids must be from 0 to {vocab - 1}")
