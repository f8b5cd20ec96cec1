"""Which layers of a model see everything and which only a window, from its config."""

from __future__ import annotations

import json
from typing import Any

from radix.config_fields import Fields

# Every how many layers one sees everything, where a config names a window and leaves the pattern to the model's code.
_FULL_EVERY = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "cohere2": 4,
    "olmo3": 4,
}
# These ignore `sliding_window` unless `use_sliding_window` is true.
_WINDOW_ON_DEMAND = {"qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_moe", "smollm3"}
# Fields of models that carry a state of fixed size from token to token in place of keys and values.
_STATE_FIELDS = (
    "state_size",
    "ssm_cfg",
    "mamba_d_state",
    "mamba_state_dim",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_period",
    "block_types",
    "linear_num_key_heads",
    "linear_attn_config",
    "rwkv_hidden_size",
)
# What a layer type of a config is bounded by: a field, or None.
_BOUND_BY = {"full_attention": None, "sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}


def windows(fields: Fields, layers: int) -> list[int | None]:
    """Return for each layer the number of last tokens it reads; None reads all.

    Raises:
        ConfigError: a layer type that keeps no keys and values a token, a pattern that contradicts the number of
            layers, or a window without a size.
    """
    for name in _STATE_FIELDS:
        if fields.get(name) is not None:
            raise fields.error(f"{name} is set: layers that carry a state (Mamba, linear attention) have no KV a token")
    if fields.get("is_encoder_decoder"):
        raise fields.error("is_encoder_decoder is true: only decoders are planned for")
    types = fields.get("layer_types")
    if types is not None:
        return _from_types(fields, types, layers)
    pattern = fields.get("sliding_window_pattern")
    model_type = str(fields.get("model_type"))
    if pattern is None:
        pattern = _FULL_EVERY.get(model_type)
    if pattern is not None:
        return _from_pattern(fields, pattern, layers)
    window = fields.optional("sliding_window")
    on = fields.get("use_sliding_window")
    if window is None or on is False or (on is None and model_type in _WINDOW_ON_DEMAND):
        return [None] * layers
    first = fields.get("max_window_layers") if on else 0
    if first is not None and (type(first) is not int or first < 0):
        raise fields.error(f"max_window_layers is {json.dumps(first)}: it must be a whole number from 0")
    return [window if layer >= (first or 0) else None for layer in range(layers)]


def _from_types(fields: Fields, types: Any, layers: int) -> list[int | None]:
    if not isinstance(types, list):
        raise fields.error(f"layer_types is {json.dumps(types)[:40]}: it must be a list with a type a layer")
    if len(types) != layers:
        raise fields.error(f"layer_types names {len(types)} layers and num_hidden_layers says {layers}")
    result: list[int | None] = []
    for index, kind in enumerate(types):
        if kind not in _BOUND_BY:
            raise fields.error(
                f"layer_types[{index}] is {json.dumps(kind)}: what it keeps a token is not known; known are "
                f"{', '.join(_BOUND_BY)}"
            )
        bound = _BOUND_BY[kind]
        result.append(fields.require(f"how many tokens a {kind} layer keeps", bound) if bound else None)
    return result


def _from_pattern(fields: Fields, pattern: Any, layers: int) -> list[int | None]:
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        local = [pattern[layer % len(pattern)] == "L" for layer in range(layers)]
    elif type(pattern) is int and pattern >= 1:
        local = [(layer + 1) % pattern != 0 for layer in range(layers)]
    else:
        raise fields.error(
            f"sliding_window_pattern is {json.dumps(pattern)}: it must be a whole number from 1 or letters L and G"
        )
    if not any(local):
        return [None] * layers
    window = fields.require("how many tokens a sliding_attention layer keeps", "sliding_window")
    return [window if is_local else None for is_local in local]
