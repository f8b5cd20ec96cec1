"""The one function that every attention back end is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import LayerKV


@dataclass(frozen=True)
class AttentionOptions:
    """How a layer attends.

    scale: factor on the scores. window: a query sees itself and the `window - 1` positions before it; None sees all.
    softcap: scores become `softcap * tanh(score / softcap)`. sinks: `[heads]`, a score of nothing for each head, which
    takes its share of the softmax. want_lse: whether the log-sum-exp is needed.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    want_lse: bool = False


class AttentionBackend(Protocol):
    """Causal attention of a packed ragged batch over paged KV, the batch's own tokens included.

    query is `[T, heads, key_dim]`, the rows of `plan` one after the other. The KV of positions `0 : kv_len` of each row
    lies in `kv` under the row's block table; query `i` of a row sits at position `start + i` and sees positions up to
    its own. Returns the output `[T, heads, value_dim]` in the query's dtype, and the natural log-sum-exp of the scores
    `[T, heads]` in float32 where `want_lse` asks for it, else None. Slots beyond `kv_len` are never read.
    """

    name: str

    def __call__(
        self, query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
    ) -> tuple[torch.Tensor, torch.Tensor | None]: ...
