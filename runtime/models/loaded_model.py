"""What loading a model yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime.kv.precision import KVFormat, LayerShape
from runtime.kv.settings import KVSettings
from runtime.models.forward import Forward


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a loaded model.

    fingerprint: a hex digest that changes whenever cached KV would be wrong. plain_kv_bytes_per_token: what
    kv_bytes_per_token would be at the dtype of the weights. host_kv_dtype: of tiers, where it is not the pool's.
    weights: in which formats those of the matrix products lie, in words.
    """

    name: str
    architecture: str
    context_length: int
    vocab_size: int
    num_layers: int
    kv_heads: int
    head_dim: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    kv_dtype: str
    device: str
    kv_bytes_per_token: int
    plain_kv_bytes_per_token: int
    fingerprint: str
    has_chat_template: bool
    attention_backend: str
    forward: str
    host_kv_dtype: str = ""
    weights: str = ""


@dataclass(frozen=True)
class LoadedModel:
    """A model whose attention goes through the hook, its tokenizer, and the shape of its KV.

    repack: the same weights with a pool of another precision; raises InvalidRequest.
    """

    model: Any
    tokenizer: Any
    info: ModelInfo
    layers: tuple[LayerShape, ...]
    kv_format: KVFormat
    forward: Forward
    repack: Callable[[KVSettings], LoadedModel] = field(repr=False, compare=False)
