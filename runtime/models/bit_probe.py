"""What a deterministic model proves at load: a token's keys, values and logits have the same bits in every company."""

from __future__ import annotations

import numpy as np
import torch

from runtime.attention.deterministic import SEGMENT
from runtime.errors import ModelRefused
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.models.loaded_model import LoadedModel

_BLOCK = 16
# Longer than a segment, so that results are joined.
_TOKENS = SEGMENT + 44
_NEIGHBOURS = 3


def probe_bits(loaded: LoadedModel) -> None:
    """Compute one prompt in several ways and compare all that it leaves behind; raises ModelRefused at a difference."""
    runner = ModelRunner(loaded, (1 + _NEIGHBOURS) * -(-_TOKENS // _BLOCK), _BLOCK, fill=float("nan"))
    whole = _compute(runner, [_TOKENS], crowded=False)
    ways = {
        "in uneven chunks": _compute(runner, [1, 2, 5, 200, 49, 1, 1, _TOKENS - 259], crowded=False),
        "beside other sequences": _compute(runner, [130, 1, 1, _TOKENS - 132], crowded=True),
    }
    for way, got in ways.items():
        if not torch.equal(whole, got):
            raise ModelRefused(
                f"{loaded.info.architecture}: {way}, a prompt does not come out with the same bits; something in this "
                "model lets a token's neighbours choose how it is rounded, so it has no deterministic mode"
            )


def _compute(runner: ModelRunner, chunks: list[int], *, crowded: bool) -> torch.Tensor:
    """All bits that a prompt leaves behind, as bytes: its logits, then its keys and values of every layer."""
    vocab, device = runner.loaded.info.vocab_size, runner.pool.device
    tokens = np.random.default_rng(5).integers(0, vocab, (1 + _NEIGHBOURS, _TOKENS)).astype(np.int32)
    tables = np.random.default_rng(len(chunks)).permutation(runner.pool.num_blocks).astype(np.int32)
    tables = tables.reshape(1 + _NEIGHBOURS, -1)
    left, start = [], 0
    for step, count in enumerate(chunks):
        items = [BatchItem(tokens[0, start : start + count], start, tables[0])]
        if crowded:
            # Of several lengths, on both sides.
            before = BatchItem(tokens[1, : 7 + 100 * step], 0, tables[1])
            after = [BatchItem(tokens[i, step : step + 1], step, tables[i]) for i in range(2, 1 + _NEIGHBOURS)]
            items = [before, *items, *after]
        plan = StepPlan(items, _BLOCK, runner.pool.num_blocks, device)
        row = plan.rows[1 if crowded else 0]
        left.append(runner.run(plan, torch.arange(row.q_start, row.q_start + row.q_len, device=device)))
        start += count
    slots = torch.from_numpy(tables[0].astype(np.int64)[:, None] * _BLOCK + np.arange(_BLOCK)).flatten()[:_TOKENS]
    slots = slots.to(device)
    written = [part[slots] for kv in runner.pool.layers.values() for part in (kv.key_slots, kv.value_slots)]
    return torch.cat([part.contiguous().view(torch.uint8).flatten() for part in (torch.cat(left), *written)])
