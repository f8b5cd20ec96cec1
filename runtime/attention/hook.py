"""Where transformers' layers meet paged attention.

A layer calls the function registered here with its queries, keys and values; what a step knows (pool, block tables,
back end) reaches the function through an ambient context, because some models drop keyword arguments on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from runtime.attention.interface import AttentionBackend, AttentionOptions
from runtime.errors import ModelRefused
from runtime.execution.batch import StepPlan
from runtime.kv.kv_pool import KVPool
from runtime.kv.writing import KVWriter

HOOK = "radixloop_paged"


class LayerCall(Protocol):
    """A layer's attention: query `[T, heads, key_dim]`, key and value `[T, kv_heads, dim]` in, the output out."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor: ...


_ambient: ContextVar[LayerCall | None] = ContextVar("radixloop_layer_call", default=None)


@contextmanager
def attending(call: LayerCall) -> Iterator[None]:
    """Send the attention of every hooked model that runs inside the block to `call`."""
    token = _ambient.set(call)
    try:
        yield
    finally:
        _ambient.reset(token)


@contextmanager
def plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """The model as transformers runs it, without our hook, inside the block."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(HOOK)


class PagedStep:
    """The layer call of a serving step: write the new tokens' KV, then attend over the block tables."""

    def __init__(self, pool: KVPool, plan: StepPlan, backend: AttentionBackend, writer: KVWriter) -> None:
        self._pool = pool
        self._plan = plan
        self._backend = backend
        self._writer = writer

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        kv = self._pool.layers[layer]
        self._writer.write(layer, self._plan.write_slots, key, value)
        if kv.rotate_keys:
            query = self._writer.turn(query)
        out = self._backend(query, kv, self._plan, options)[0]
        return self._writer.turn(out) if kv.rotate_values else out


def hooked_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls: query `[1, heads, T, dim]` and so on, output `[1, T, heads, dim]`."""
    call = _ambient.get()
    if call is None:
        raise RuntimeError("this model's attention serves ModelRunner; wrap other forwards in plain_attention(model)")
    if attention_mask is not None:
        raise ModelRefused(
            f"{type(module).__name__} builds an attention mask of its own, which a paged batch cannot honour"
        )
    if is_causal is False or (is_causal is None and getattr(module, "is_causal", True) is False):
        raise ModelRefused(f"{type(module).__name__} attends in both directions; only causal decoders can be cached")
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise ModelRefused(
            f"{type(module).__name__} has no layer_idx, so its keys and values have no place in the pool"
        )
    options = AttentionOptions(
        scale=float(scaling) if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    out = call(int(layer), query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), options)
    return out[None], None


def no_mask(*_: Any, **__: Any) -> None:
    """Causality and windows follow from positions in the back end; a packed batch must not pay for a T x T mask."""


AttentionInterface.register(HOOK, hooked_attention)
AttentionMaskInterface.register(HOOK, no_mask)
