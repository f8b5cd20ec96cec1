"""The header of a GGUF file, read as the config.json that its model would have.

Only the key-value part is read: little-endian, after GGUF's published layout. Weights are never touched.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

MAGIC = b"GGUF"
# Bytes of each scalar type id; 8 is a string and 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MODEL_TYPES = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gpt-oss": "gpt_oss"}
# GGUF's names, below the architecture, and config.json's.
_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "ssm.state_size": "state_size",
}


class BadGguf(Exception):
    """Why a header cannot be read."""


def gguf_config(path: Path) -> dict[str, Any]:
    """Return the fields of config.json that decide the KV cache's shape. Raises BadGguf, OSError."""
    with path.open("rb") as file:
        values = _Header(file, path.stat().st_size).read()
    kind = values.get("general.architecture")
    if not isinstance(kind, str):
        raise BadGguf("general.architecture is missing from the GGUF header")
    below = {key.removeprefix(f"{kind}."): value for key, value in values.items() if key.startswith(f"{kind}.")}
    config = {ours: below[theirs] for theirs, ours in _NAMES.items() if theirs in below}
    config["model_type"] = _MODEL_TYPES.get(kind, kind)
    config["_name_or_path"] = values.get("general.name")
    if "attention.kv_lora_rank" in below:
        config |= _latent(below)
    return config


def _latent(below: dict[str, Any]) -> dict[str, Any]:
    """MLA: newer files give a head's lengths under names of their own, beside those of the latent."""
    key = below.get("attention.key_length_mla", below.get("attention.key_length"))
    rope = below.get("rope.dimension_count")
    return {
        "kv_lora_rank": below["attention.kv_lora_rank"],
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope if isinstance(key, int) and isinstance(rope, int) and key > rope else None,
        "v_head_dim": below.get("attention.value_length_mla", below.get("attention.value_length")),
    }


class _Header:
    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size

    def read(self) -> dict[str, Any]:
        magic, version, _tensors, count = self._unpack("4sIQQ")
        if magic != MAGIC or version not in {2, 3}:
            raise BadGguf(f"a GGUF header of version {version} is not understood: known are 2 and 3")
        return {self._string(): self._value(self._unpack("I")[0]) for _ in range(self._bounded(count))}

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._unpack(_SCALARS[kind])[0]
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise BadGguf(f"the GGUF header holds a value of type {kind}, which is not known")
        inner, length = self._unpack("IQ")
        self._bounded(length)
        if inner in _SCALARS:
            return list(self._unpack(f"{length}{_SCALARS[inner]}"))
        # Lists of strings are the tokenizer's: passed over.
        for _ in range(length):
            self._value(inner)
        return None

    def _string(self) -> str:
        return self._take(self._bounded(self._unpack("Q")[0])).decode("utf-8", "replace")

    def _bounded(self, count: int) -> int:
        if count > self._size:
            raise BadGguf("the GGUF header is damaged: it holds a length beyond the end of the file")
        return count

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        layout = f"<{layout}"
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise BadGguf("the GGUF header is cut short")
        return data
