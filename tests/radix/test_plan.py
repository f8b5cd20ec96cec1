"""Planning against published shapes, each figure computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radix.config_fields import ConfigError
from radix.errors import InvalidArgument
from radix.model_shapes import ModelShape, model_shape
from radix.plan import Plan, Profile, dtype_named

CONFIGS = Path(__file__).with_name("configs")
GIB = 2**30


def shape(name: str, **changes: Any) -> ModelShape:
    values = json.loads((CONFIGS / f"{name}.json").read_text())
    values.update(changes)
    return model_shape(json.dumps({key: value for key, value in values.items() if value != "absent"}))


def plan(name: str, dtype: str = "fp16", memory: int = 80 * GIB, block_size: int = 16) -> Plan:
    return Plan(model_shape(str(CONFIGS / f"{name}.json")), dtype, memory, block_size)


@pytest.mark.parametrize(
    ("name", "attention", "fp16_bytes", "by_query_heads"),
    [
        ("Llama-3-8B", "GQA", 2 * 32 * 8 * 128 * 2, 2 * 32 * 32 * 128 * 2),
        ("Llama-2-7B", "MHA", 2 * 32 * 32 * 128 * 2, 2 * 32 * 32 * 128 * 2),
        ("Qwen2.5-7B", "GQA", 2 * 28 * 4 * 128 * 2, 2 * 28 * 28 * 128 * 2),
        ("DeepSeek-V3", "MLA", 61 * (512 + 64) * 2, 61 * 128 * (128 + 64 + 128) * 2),
        ("Gemma-3-4B", "GQA", 2 * 34 * 4 * 256 * 2, 2 * 34 * 8 * 256 * 2),
        ("Gemma-3-1B", "MQA", 2 * 26 * 1 * 256 * 2, 2 * 26 * 4 * 256 * 2),
        ("gpt-oss-20b", "GQA", 2 * 24 * 8 * 64 * 2, 2 * 24 * 64 * 64 * 2),
        ("SmolLM2-135M", "GQA", 2 * 30 * 3 * 64 * 2, 2 * 30 * 9 * 64 * 2),
    ],
)
def test_bytes_a_token(name: str, attention: str, fp16_bytes: int, by_query_heads: int) -> None:
    one = plan(name)
    assert one.shape.attention == attention
    assert one.bytes_per_token == fp16_bytes
    assert one.query_heads_bytes == by_query_heads


def test_llama_3_8b_keeps_128_kib_and_not_512() -> None:
    assert plan("Llama-3-8B").bytes_per_token == 128 * 1024
    assert plan("Llama-3-8B").query_heads_bytes == 512 * 1024
    assert plan("Llama-3-8B").tokens == 655_360


@pytest.mark.parametrize(
    ("dtype", "both"),
    [
        ("fp32", 2 * 128 * 4),
        ("bf16", 2 * 128 * 2),
        ("float16", 2 * 128 * 2),
        ("fp8", 2 * (128 + 2)),
        ("int8", 2 * (128 + 2)),
        # A fifth bit of keys, and their offset.
        ("int4", (64 + 16 + 4) + (64 + 2)),
        ("fp16/int4", 128 * 2 + (64 + 2)),
    ],
)
def test_bytes_follow_the_dtype_with_its_scales(dtype: str, both: int) -> None:
    assert plan("Llama-3-8B", dtype_named(dtype)).bytes_per_token == 32 * 8 * both


def test_a_latent_has_one_scale_a_layer() -> None:
    assert plan("DeepSeek-V3", "int8").bytes_per_token == 61 * (576 + 2)


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(InvalidArgument, match="'fp12' is no dtype: known are fp32, bf16"):
        dtype_named("fp12")
    with pytest.raises(InvalidArgument, match="'int8/int4/int4' is no dtype"):
        dtype_named("int8/int4/int4")


def test_sessions_take_whole_blocks() -> None:
    one = plan("Llama-3-8B", memory=100 * 131072, block_size=16)
    assert (one.blocks, one.tokens) == (6, 96)
    assert [one.sessions(n) for n in (1, 16, 17, 32, 33, 96, 97)] == [6, 6, 3, 3, 2, 1, 0]
    assert one.session_bytes(17) == 32 * 131072


def test_a_memory_below_one_block_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="memory is 1,000 B: one block of 16 tokens of Llama-3-8B takes 2 MiB"):
        plan("Llama-3-8B", memory=1000)


@pytest.mark.parametrize(
    ("name", "windowed", "window", "full_bytes"),
    [
        ("Gemma-3-4B", 29, 1024, 2 * 5 * 4 * 256 * 2),
        ("Gemma-3-1B", 22, 512, 2 * 4 * 256 * 2),
        ("gpt-oss-20b", 12, 128, 2 * 12 * 8 * 64 * 2),
    ],
)
def test_window_layers_are_bounded_where_they_drop(name: str, windowed: int, window: int, full_bytes: int) -> None:
    one = plan(name)
    assert one.shape.window_layers == windowed
    assert one.shape.widest_window == window
    assert one.beyond_windows_bytes == full_bytes
    tokens = 65536
    kept = tokens * full_bytes + window * (one.bytes_per_token - full_bytes)
    assert one.sessions_within_windows(tokens) == 80 * GIB // kept
    assert one.sessions_within_windows(64) == 80 * GIB // (64 * one.bytes_per_token)


def test_a_window_that_is_switched_off_bounds_nothing() -> None:
    assert shape("Qwen2.5-7B").window_layers == 0
    assert shape("Qwen2.5-7B", use_sliding_window=True, max_window_layers=20).window_layers == 8
    assert shape("Llama-3-8B", model_type="mistral", sliding_window=4096).window_layers == 32
    assert shape("Llama-3-8B", model_type="gemma2", sliding_window=4096).window_layers == 16
    assert shape("Llama-3-8B", sliding_window=4096, sliding_window_pattern="LLLG").window_layers == 24


def test_chunked_layers_are_bounded_by_their_chunk() -> None:
    kinds = ["chunked_attention"] * 24 + ["full_attention"] * 8
    mixed = shape("Llama-3-8B", layer_types=kinds, attention_chunk_size=8192)
    assert (mixed.window_layers, mixed.widest_window) == (24, 8192)


def test_older_spellings_are_understood() -> None:
    gpt2 = model_shape('{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}')
    assert (gpt2.attention, gpt2.values, gpt2.context) == ("MHA", 2 * 12 * 768, 1024)
    assert gpt2.remarks == ("num_key_value_heads is not in the config: taken as the 12 query heads",)
    falcon = {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True}
    assert model_shape(json.dumps(falcon)).values == 2 * 32 * 64
    falcon_40b = {**falcon, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8}
    assert model_shape(json.dumps({**falcon_40b, "new_decoder_architecture": True})).values == 2 * 32 * 8 * 64


def test_layers_that_share_keys_and_values_keep_none() -> None:
    shared = shape("Llama-3-8B", num_kv_shared_layers=12)
    assert shared.values == 2 * 20 * 8 * 128
    assert "the last 12 layers reuse the KV of earlier ones" in shared.remarks[0]


def test_full_layers_may_have_heads_of_their_own() -> None:
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 5
    fields = {"model_type": "gemma4_text", "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8}
    fields |= {"head_dim": 256, "layer_types": kinds, "sliding_window": 1024, "global_head_dim": 512}
    assert model_shape(json.dumps(fields)).values == 25 * 8 * 512 + 5 * 8 * 1024
    fields |= {"attention_k_eq_v": True, "num_global_key_value_heads": 2}
    assert model_shape(json.dumps(fields)).values == 25 * 8 * 512 + 5 * 2 * 1024


def test_an_indexer_keeps_a_key_beside_the_latent() -> None:
    assert shape("DeepSeek-V3", index_head_dim=128).values == 61 * (512 + 64 + 128)


def test_a_model_is_a_folder_a_file_or_inline(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    text = (CONFIGS / "SmolLM2-135M.json").read_text()
    (folder / "config.json").write_text(text)
    named = [
        model_shape(str(source)).name for source in (folder, folder / "config.json", CONFIGS / "SmolLM2-135M.json")
    ]
    assert named == ["My-Model", "My-Model", "SmolLM2-135M"]
    assert model_shape(text).name == "llama"
    assert model_shape(str(folder)).values == model_shape(text).values


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Llama-3-8B", {"num_hidden_layers": "absent"}, r"num_hidden_layers is missing \(nor n_layer"),
        ("Llama-3-8B", {"num_attention_heads": None}, "num_attention_heads is missing"),
        ("Llama-3-8B", {"num_attention_heads": "32"}, 'num_attention_heads is "32": it must be a whole number from 1'),
        ("Llama-3-8B", {"num_hidden_layers": True}, "num_hidden_layers is true"),
        ("Llama-3-8B", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("Llama-3-8B", {"hidden_size": "absent"}, "hidden_size is missing .*: the size of a head cannot be known"),
        ("Llama-3-8B", {"hidden_size": 4100}, "hidden_size is 4100 and num_attention_heads is 32"),
        ("Llama-3-8B", {"num_key_value_heads": 5}, "num_key_value_heads is 5 and num_attention_heads is 32"),
        ("Llama-3-8B", {"num_key_value_heads": 64}, "num_key_value_heads is 64 and num_attention_heads is 32"),
        ("Llama-3-8B", {"num_key_value_heads": [8, 8]}, "for each of the 32 layers"),
        ("Llama-3-8B", {"num_kv_shared_layers": 32}, "num_kv_shared_layers is 32: it must be from 0 to 31"),
        ("Llama-3-8B", {"is_encoder_decoder": True}, "is_encoder_decoder is true"),
        ("Llama-3-8B", {"state_size": 16}, "state_size is set: layers that carry a state"),
        ("Llama-3-8B", {"sliding_window_pattern": 6}, "sliding_window is missing"),
        ("Llama-3-8B", {"sliding_window_pattern": "LLX"}, 'sliding_window_pattern is "LLX"'),
        ("DeepSeek-V3", {"qk_rope_head_dim": "absent"}, "qk_rope_head_dim is missing: the rotated part of MLA's key"),
        ("gpt-oss-20b", {"num_hidden_layers": 23}, "layer_types names 24 layers and num_hidden_layers says 23"),
        (
            "gpt-oss-20b",
            {"sliding_window": None},
            "sliding_window is missing: how many tokens a sliding_attention layer",
        ),
        ("gpt-oss-20b", {"layer_types": "full"}, 'layer_types is "full": it must be a list'),
        (
            "gpt-oss-20b",
            {"layer_types": ["mamba"] * 24},
            r'layer_types\[0\] is "mamba": what it keeps a token is not known',
        ),
        ("Gemma-3-4B", {"text_config": 5}, "text_config is no JSON object"),
        ("Gemma-3-4B", {"text_config": {}}, "text_config: num_hidden_layers is missing"),
    ],
)
def test_a_field_that_is_missing_or_contradicts_is_named(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        shape(name, **changes)
    assert str(caught.value).startswith("--config: ")


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"a": 1,\n nope}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe\x00")
    for name, message in {
        "none": "no such file or folder",
        "": "the folder has no config.json",
        "broken.json": "not JSON at line 2, column 2",
        "list.json": "no JSON object",
        "weights.bin": "cannot be read as a config",
    }.items():
        path = str(tmp_path / name)
        with pytest.raises(ConfigError, match=message) as caught:
            model_shape(path)
        assert str(caught.value).startswith(path.rstrip("/"))


def test_a_profile_grows_by_turns_and_names_the_first_that_does_not_fit() -> None:
    one = plan("Llama-3-8B", memory=1000 * 131072, block_size=10)
    profile = Profile(start=100, per_turn=20, turns=10)
    turns = one.turns(profile, 5)
    assert [turn.tokens for turn in turns] == list(range(100, 301, 20))
    assert turns[3].bytes == 160 * 131072
    assert turns[3].all_sessions_bytes == 800 * 131072
    assert [turn.fits for turn in turns] == [True] * 6 + [False] * 5
    assert one.full_at_turn(profile, 5) == 6
    assert one.full_at_turn(profile, 1) == 46
    assert one.full_at_turn(profile, 11) == 0


@pytest.mark.parametrize("sessions", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("per_turn", [1, 7, 33])
def test_the_turn_that_is_full_is_the_first_whose_blocks_do_not_fit(sessions: int, per_turn: int) -> None:
    one = plan("Llama-3-8B", memory=777 * 131072, block_size=16)
    profile = Profile(start=9, per_turn=per_turn, turns=900)
    first = next(turn.turn for turn in one.turns(profile, sessions) if not turn.fits)
    assert one.full_at_turn(profile, sessions) == first
