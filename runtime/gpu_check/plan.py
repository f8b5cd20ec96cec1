"""How much is checked and measured: the full sizes for a GPU, small ones that a CPU does in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckPlan:
    """Sizes of a run, in tokens and rows.

    chunk: tokens of a prefill step. prompts: lengths to prefill and to ask for twice. new_tokens: at the end of the
    second asking. attention_kv, attention_chunk: of the kernels measured alone. steps: decode steps a case.
    """

    size: str
    block_sizes: tuple[int, ...]
    chunk: int
    prompts: tuple[int, ...]
    new_tokens: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    attention_batch: int
    attention_kv: int
    attention_chunk: int


FULL = CheckPlan(
    size="7b",
    block_sizes=(16, 256),
    chunk=8192,
    prompts=(4096, 32768),
    new_tokens=256,
    batches=(1, 8, 32, 128),
    contexts=(2048, 32768),
    steps=20,
    attention_batch=32,
    attention_kv=8192,
    attention_chunk=2048,
)
SMALL = CheckPlan(
    size="tiny",
    block_sizes=(4, 16),
    chunk=64,
    prompts=(48, 160),
    new_tokens=8,
    batches=(1, 3),
    contexts=(32, 96),
    steps=3,
    attention_batch=3,
    attention_kv=64,
    attention_chunk=32,
)
