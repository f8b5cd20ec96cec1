"""What a model proves at load: every layer goes through the hook, and paged answers equal the ordinary forward's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from runtime.attention.hook import attending, plain_attention
from runtime.attention.interface import AttentionOptions
from runtime.errors import ModelRefused
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.kv.precision import LayerShape
from runtime.models.loaded_model import LoadedModel

# Largest distance between a paged and an ordinary row of logits, relative to the ordinary row's length. In float32 the
# two differ by rounding alone. In half precision single rows of a deep model drift, so the mean over rows is held.
TOLERANCE = {torch.float32: 1e-3}
HALF_TOLERANCE = 5e-2

_PROBE_BLOCK = 16
_PROBE_CHUNKS = (21, 18, 1, 1)
_PROBE_WINDOW = 13


class _Tracer:
    """Records how each layer attends and the shape of what it would cache; the outputs are zeros."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.options: dict[int, AttentionOptions] = {}
        self.calls: list[int] = []

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        self.calls.append(layer)
        self.shapes[layer] = LayerShape(layer, key.shape[1], key.shape[2], value.shape[2])
        self.options[layer] = options
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


def trace_layers(model: Any) -> tuple[tuple[LayerShape, ...], tuple[AttentionOptions, ...]]:
    """Run two tokens through the hooked model and return what each layer caches and how it attends, in layer order.

    Raises ModelRefused when the model takes no positions, or when a layer bypasses the hook or shares its index.
    """
    name = type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelRefused(f"{name}.forward takes no position_ids, so a chunk cannot start behind a cached prefix")
    tracer = _Tracer()
    ids = torch.tensor([[1, 2]], device=model.device)
    with torch.inference_mode(), attending(tracer):
        model(input_ids=ids, position_ids=torch.tensor([[0, 1]], device=model.device), use_cache=False)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if sorted(tracer.calls) != list(range(layers)):
        raise ModelRefused(
            f"{name} sent {len(tracer.calls)} attention calls for layers {sorted(set(tracer.calls))} to the cache, but "
            f"has {layers} layers: some bypass the attention interface or share keys and values"
        )
    ordered = range(layers)
    return tuple(tracer.shapes[layer] for layer in ordered), tuple(tracer.options[layer] for layer in ordered)


@contextmanager
def _short_windows(model: Any, window: int) -> Iterator[None]:
    """Sliding windows cut down inside the block, so that a short prompt is longer than them."""
    changed: list[tuple[Any, int]] = []
    configs = {id(config): config for config in (model.config, model.config.get_text_config(decoder=True))}
    for holder in (*configs.values(), *model.modules()):
        value = getattr(holder, "sliding_window", None)
        if isinstance(value, int) and value > window:
            changed.append((holder, value))
            holder.sliding_window = window
    try:
        yield
    finally:
        for holder, value in changed:
            holder.sliding_window = value


def probe(loaded: LoadedModel) -> float:
    """Send a prompt through the pool in chunks and compare every row of logits with the ordinary eager forward.

    Returns the relative error; raises ModelRefused when it exceeds the tolerance (1e-3 in float32, 5e-2 below).
    Sliding windows are shortened meanwhile, so that they matter.
    """
    model = loaded.model
    total = sum(_PROBE_CHUNKS)
    tokens = np.random.default_rng(7).integers(0, loaded.info.vocab_size, total).astype(np.int32)
    blocks = -(-total // _PROBE_BLOCK)
    table = np.arange(blocks, 0, -1, dtype=np.int32)
    with _short_windows(model, _PROBE_WINDOW):
        forward = loaded.forward.with_options(trace_layers(model)[1])
        runner = ModelRunner(replace(loaded, forward=forward), blocks + 1, _PROBE_BLOCK, fill=float("nan"))
        paged = _chunked_logits(runner, tokens, table)
        with torch.inference_mode(), plain_attention(model):
            ids = torch.from_numpy(tokens.astype(np.int64))[None].to(model.device)
            plain = model(input_ids=ids, use_cache=False).logits[0].float()
    errors = (paged - plain).norm(dim=-1) / plain.norm(dim=-1).clamp_min(1e-6)
    limit = TOLERANCE.get(model.dtype)
    error = float(errors.max()) if limit is not None else float(errors.mean())
    limit = limit if limit is not None else HALF_TOLERANCE
    if not error <= limit:
        raise ModelRefused(
            f"{loaded.info.architecture}: logits through the cache ({loaded.forward.name} forward) differ from the "
            f"ordinary forward by {error:.2g} (relative, limit {limit:g})"
        )
    return error


def _chunked_logits(runner: ModelRunner, tokens: np.ndarray, table: np.ndarray) -> torch.Tensor:
    pieces, start = [], 0
    for length in _PROBE_CHUNKS:
        item = BatchItem(tokens[start : start + length], start, table)
        plan = StepPlan([item], runner.pool.block_size, runner.pool.num_blocks, runner.pool.device)
        pieces.append(runner.run(plan, torch.arange(length, device=runner.pool.device)))
        start += length
    return torch.cat(pieces)
