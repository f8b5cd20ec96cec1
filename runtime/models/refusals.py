"""Models whose cached answers would be wrong, refused by name before any weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from runtime.errors import ModelRefused

# The frequencies of these depend on the longest sequence of a batch, so a token's key would depend on its neighbours.
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")

# Layer types of transformers configs that keep keys and values for every position (or a window of them).
ATTENTION_LAYERS = ("full_attention", "sliding_attention", "attention")

# Layer types that keep a state in place of keys and values.
RECURRENT_LAYERS = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid")

# Config fields that only models with such layers have.
RECURRENT_FIELDS = ("state_size", "ssm_cfg", "mamba_d_state", "lru_width", "attention_hidden_size")

_RECURRENT = (
    "{} (linear attention, Mamba and their like): a state belongs to one point of one sequence and cannot be shared by "
    "prefix as keys and values can"
)


def refuse_unservable(config: PreTrainedConfig) -> None:
    """Raises ModelRefused when a model of this config cannot be served from a cache of keys and values."""
    if config.is_encoder_decoder:
        raise ModelRefused(
            f"{config.model_type} is an encoder-decoder: its decoder attends to an encoder's output, "
            "which a prefix of tokens does not determine"
        )
    text = config.get_text_config(decoder=True)
    _refuse_layers(text)
    _refuse_batch_dependent_rope(text)
    _refuse_bypass(config)


def _refuse_layers(config: PreTrainedConfig) -> None:
    for kind in getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ():
        if kind in RECURRENT_LAYERS:
            raise ModelRefused(_RECURRENT.format(f"{config.model_type} has {kind} layers"))
        if kind not in ATTENTION_LAYERS:
            raise ModelRefused(f"{config.model_type} has {kind} layers, whose attention the cache does not reproduce")
    if any(hasattr(config, name) for name in RECURRENT_FIELDS):
        raise ModelRefused(_RECURRENT.format(f"{config.model_type} has recurrent (Mamba-like) layers"))


def _rope_types(parameters: Any) -> Iterator[str]:
    if not isinstance(parameters, dict):
        return
    kind = parameters.get("rope_type", parameters.get("type"))
    if isinstance(kind, str):
        yield kind
    for nested in parameters.values():
        yield from _rope_types(nested)


def _refuse_batch_dependent_rope(config: PreTrainedConfig) -> None:
    for field in ("rope_parameters", "rope_scaling"):
        for kind in _rope_types(getattr(config, field, None)):
            if kind in BATCH_DEPENDENT_ROPE:
                raise ModelRefused(
                    f"{config.model_type} uses RoPE of type {kind!r}: its frequencies change with the length of the "
                    "longest sequence in a batch, so a cached key would be wrong for the next request"
                )


def _refuse_bypass(config: PreTrainedConfig) -> None:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelRefused(f"{config.model_type} is no decoder that transformers loads for causal language modelling")
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not model_class.is_backend_compatible():
        raise ModelRefused(
            f"{model_class.__name__} computes attention inside its layers and bypasses transformers' attention "
            "interface, so its keys and values never reach the cache"
        )
