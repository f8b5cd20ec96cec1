"""Runs the model's forward pass for a ragged batch against the paged KV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from radix import Copy
from runtime.attention import fixed_shapes, make_backend
from runtime.attention.hook import PagedStep
from runtime.errors import InvalidRequest
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.cuda_graphs import DecodeGraphs, record_graphs
from runtime.execution.static_step import StaticStep
from runtime.kv.kv_pool import KVPool
from runtime.kv.writing import make_writer
from runtime.models.loaded_model import LoadedModel


class ModelRunner:
    """A loaded model together with its KV pool.

    graphs_for: on a CUDA GPU, the largest decode batch to record CUDA graphs for; 0 records none.

    Not thread-safe: one thread drives it. A forward pass that raises leaves the runner usable; the slots that it was to
    write hold nothing that may be committed.
    """

    def __init__(
        self, loaded: LoadedModel, num_blocks: int, block_size: int, *, fill: float = 0.0, graphs_for: int = 0
    ) -> None:
        self.loaded = loaded
        device = loaded.model.device
        pool_tokens = num_blocks * block_size
        records = graphs_for > 0 and device.type == "cuda"
        # One block more than sequences may own, for what the graphs' padding writes.
        self.pool = KVPool(
            loaded.layers, num_blocks + records, block_size, dtype=loaded.kv_format, device=device, fill=fill
        )
        self.num_blocks = num_blocks
        self.backend = make_backend(loaded.info.attention_backend)
        self.writer = make_writer(self.pool, row_invariant=self.backend.name == "deterministic")
        self._graphs: DecodeGraphs | None = None
        if records:
            self._graphs = record_graphs(
                self._compute,
                device=device,
                fixed_shapes=fixed_shapes(self.backend.name, block_size),
                block_size=block_size,
                num_blocks=num_blocks,
                max_batch=graphs_for,
                max_tokens=min(loaded.info.context_length or pool_tokens, pool_tokens),
            )

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
        recorded = self._graphs.prepare(items) if self._graphs is not None else None
        return recorded or StepPlan(items, self.pool.block_size, self.num_blocks, self.pool.device)

    def run(self, plan: StepPlan, rows: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[len(rows), vocab]` of packed rows of a plan; writes the KV of all of the plan's tokens.

        Those of a recorded step are one row an item, and the next recorded step overwrites them.
        """
        if self._graphs is not None and isinstance(plan, StaticStep):
            return self._graphs.replay(plan)
        return self._compute(plan, rows)

    def _compute(self, plan: StepPlan, rows: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.loaded.forward(plan, PagedStep(self.pool, plan, self.backend, self.writer), rows).float()

    def _check_tokens(self, items: Sequence[BatchItem]) -> None:
        vocab = self.loaded.info.vocab_size
        tokens = np.concatenate([item.tokens for item in items]) if items else np.empty(0)
        if not len(tokens) or (tokens.min() >= 0 and tokens.max() < vocab):
            return
        for index, item in enumerate(items):
            if len(item.tokens) and (min(item.tokens) < 0 or max(item.tokens) >= vocab):
                raise InvalidRequest(f"items[{index}].tokens", item.tokens, f"token ids must be from 0 to {vocab - 1}")
