"""The shape of a model's KV cache, from its config: how many values each layer keeps for a token."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from radix.config_fields import Fields, language_model, read_config
from radix.layer_kinds import windows

# What the hub's files of these models leave to the defaults of their code.
_DEFAULTS = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "gemma4_text": {"global_head_dim": 512},
}


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same.

    Attributes:
        layers: how many.
        heads: key-value heads of a layer.
        key_dim, value_dim: numbers a token and head; MLA keeps one vector, which counts as a key.
        window: last tokens that these layers read; None reads all.
    """

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    window: int | None

    @property
    def values(self) -> int:
        """Kept a token and layer, keys and values together."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides a model's KV memory.

    Attributes:
        attention: MHA, GQA, MQA or MLA.
        layers: those with attention, whether or not they share another layer's KV.
        kv: the heads or the latent in words.
        query_heads_values: values a token by the formula that counts query heads; equal to `values` for MHA.
        expanded_values: MLA only, values a token of an engine that keeps every head's keys and values; None if unknown.
        context: the longest sequence the model was made for; None if the config does not say.
        remarks: what was taken for granted.
    """

    name: str
    source: str
    attention: str
    layers: int
    query_heads: int
    kv_heads: int
    kv: str
    groups: tuple[LayerGroup, ...]
    query_heads_values: int
    expanded_values: int | None
    context: int | None
    remarks: tuple[str, ...]

    @property
    def values(self) -> int:
        """Values a token, every layer keeping every token."""
        return sum(group.layers * group.values for group in self.groups)

    @property
    def window_layers(self) -> int:
        return sum(group.layers for group in self.groups if group.window is not None)

    @property
    def widest_window(self) -> int | None:
        return max((group.window for group in self.groups if group.window is not None), default=None)


def model_shape(model: str) -> ModelShape:
    """Return the shape of a model: a folder with config.json, a JSON or GGUF file, or inline JSON.

    Raises:
        ConfigError: unreadable, or a field that is missing, contradicts another or is not understood.
    """
    outer = read_config(model)
    fields = language_model(outer)
    fields.values = {**_DEFAULTS.get(str(fields.get("model_type")), {}), **fields.values}
    layers = fields.require("the number of layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    query_heads = fields.require("the number of query heads", "num_attention_heads", "n_head", "n_heads", "num_heads")
    layer_windows = windows(fields, layers)
    name = _name(model, outer)
    if fields.get("kv_lora_rank") is not None:
        return _latent(fields, name, layers, query_heads, layer_windows)
    return _heads(fields, name, layers, query_heads, layer_windows)


def _latent(fields: Fields, name: str, layers: int, query_heads: int, layer_windows: list[int | None]) -> ModelShape:
    """MLA: a layer keeps one compressed vector a token for all heads, and one rotated key."""
    rank = fields.require("the latent of MLA", "kv_lora_rank")
    rope = fields.require("the rotated part of MLA's key", "qk_rope_head_dim")
    index = fields.optional("index_head_dim") or 0
    nope, value = fields.optional("qk_nope_head_dim"), fields.optional("v_head_dim")
    expanded = layers * query_heads * (nope + rope + value) if nope and value else None
    groups = _grouped([(1, rank + rope + index, 0)] * layers, layer_windows)
    return ModelShape(
        name=name,
        source=fields.source,
        attention="MLA",
        layers=layers,
        query_heads=query_heads,
        kv_heads=1,
        kv=f"latent {rank} + RoPE {rope}" + (f" + index {index}" if index else ""),
        groups=groups,
        query_heads_values=expanded or sum(group.layers * group.values for group in groups),
        expanded_values=expanded,
        context=_context(fields),
        remarks=(),
    )


def _heads(fields: Fields, name: str, layers: int, query_heads: int, layer_windows: list[int | None]) -> ModelShape:
    remarks: list[str] = []
    heads = _kv_heads(fields, layers, query_heads, remarks)
    key_dim = _head_dim(fields, query_heads)
    value_dim = fields.optional("v_head_dim") or key_dim
    dims = [(key_dim, value_dim)] * layers
    global_dim = fields.optional("global_head_dim")
    if global_dim is not None:
        global_heads = fields.optional("num_global_key_value_heads") if fields.get("attention_k_eq_v") else None
        for layer in range(layers):
            if layer_windows[layer] is None:
                dims[layer] = global_dim, global_dim
                heads[layer] = global_heads or heads[layer]
    own = layers - _shared_layers(fields, layers)
    if own < layers:
        remarks.append(f"the last {layers - own} layers reuse the KV of earlier ones (num_kv_shared_layers)")
    groups = _grouped([(heads[i], *dims[i]) for i in range(own)], layer_windows[:own])
    most, fewest = max(heads), min(heads)
    return ModelShape(
        name=name,
        source=fields.source,
        attention="MHA" if fewest == query_heads else "MQA" if most == 1 and query_heads > 1 else "GQA",
        layers=layers,
        query_heads=query_heads,
        kv_heads=most,
        kv=f"{most if most == fewest else f'{fewest}-{most}'} {'head' if most == 1 else 'heads'} x {key_dim}"
        + (f", {global_dim} in full layers" if global_dim else ""),
        groups=groups,
        query_heads_values=sum(query_heads * sum(dims[i]) for i in range(own)),
        expanded_values=None,
        context=_context(fields),
        remarks=tuple(remarks),
    )


def _kv_heads(fields: Fields, layers: int, query_heads: int, remarks: list[str]) -> list[int]:
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    listed = fields.get(*names)
    if isinstance(listed, list):
        if len(listed) != layers or any(type(heads) is not int or heads < 1 for heads in listed):
            raise fields.error(f"num_kv_heads must list a whole number from 1 for each of the {layers} layers")
        return list(listed)
    # Falcon's older models say it by a switch, and their num_kv_heads means nothing then.
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        return [1] * layers
    heads = fields.optional(*names)
    if heads is None:
        remarks.append(f"num_key_value_heads is not in the config: taken as the {query_heads} query heads")
        heads = query_heads
    if heads > query_heads or query_heads % heads:
        raise fields.error(
            f"num_key_value_heads is {heads} and num_attention_heads is {query_heads}: the first must divide the second"
        )
    return [heads] * layers


def _head_dim(fields: Fields, query_heads: int) -> int:
    explicit = fields.optional("head_dim", "kv_channels", "attention_head_dim")
    if explicit is not None:
        return explicit
    hidden = fields.require("the size of a head", "hidden_size", "n_embd", "d_model")
    if hidden % query_heads:
        raise fields.error(
            f"hidden_size is {hidden} and num_attention_heads is {query_heads}: without head_dim the second must "
            "divide the first"
        )
    return hidden // query_heads


def _shared_layers(fields: Fields, layers: int) -> int:
    shared = fields.get("num_kv_shared_layers") or 0
    if type(shared) is not int or not 0 <= shared < layers:
        raise fields.error(f"num_kv_shared_layers is {json.dumps(shared)}: it must be from 0 to {layers - 1}")
    return shared


def _grouped(kept: list[tuple[int, int, int]], layer_windows: list[int | None]) -> tuple[LayerGroup, ...]:
    """Layers alike together; kept: heads, key and value dimension of each."""
    counted = Counter(zip(kept, layer_windows, strict=True))
    return tuple(LayerGroup(layers, *dims, window) for (dims, window), layers in counted.items())


def _context(fields: Fields) -> int | None:
    return fields.optional("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def _name(model: str, fields: Fields) -> str:
    if model.lstrip().startswith("{"):
        name = fields.get("_name_or_path", "model_type")
        return name if isinstance(name, str) else "config"
    path = Path(model).resolve()
    return path.parent.name if path.name == "config.json" else path.stem if path.is_file() else path.name
