"""Loading by folder, GGUF file and name; what changes a fingerprint; what a bad setting or folder gets."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from runtime.errors import InvalidRequest, ModelNotFound, ModelRefused
from runtime.models.loader import load_model


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may change."""
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


def load(path: Path, **settings: Any) -> Any:
    return load_model(str(path), device="cpu", **settings)


def test_info_states_what_was_loaded(tiny_model: Path) -> None:
    loaded = load(tiny_model)
    info = loaded.info
    assert (info.architecture, info.num_layers, info.kv_heads, info.head_dim) == ("LlamaForCausalLM", 2, 2, 16)
    assert (info.context_length, info.vocab_size) == (4096, len(loaded.tokenizer))
    assert info.eos_token_ids == (loaded.tokenizer.eos_token_id,)
    assert (info.dtype, info.kv_dtype, info.device) == ("float32", "fp32", "cpu")
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert info.has_chat_template
    assert info.attention_backend == "native"
    assert load(tiny_model, attention="reference").info.attention_backend == "reference"


def test_end_tokens_come_from_every_place_that_names_them(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 3]}))
    assert set(load(folder).info.eos_token_ids) == {1, 3, 5}


def test_a_local_path_is_never_fetched(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("a local model reached for the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    load(tiny_model)


def change_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template += " "
    tokenizer.save_pretrained(folder)


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    spec = json.loads(path.read_text())
    vocab = spec["model"]["vocab"]
    first, second = list(vocab)[100:102]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(spec))


def change_config(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rms_norm_eps"] = 1e-3
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("change", [change_weights, change_template, change_tokenizer, change_config])
def test_a_fingerprint_follows_what_it_stands_for(tiny_model: Path, folder: Path, change: Any) -> None:
    before = load(tiny_model).info.fingerprint
    assert load(folder).info.fingerprint == before
    change(folder)
    assert load(folder).info.fingerprint != before


def test_a_fingerprint_follows_the_kv_dtype(tiny_model: Path) -> None:
    prints = {load(tiny_model, dtype=dtype).info.fingerprint for dtype in ("fp32", "bf16", "fp16", "float32")}
    assert len(prints) == 3


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/nowhere/at/all", "no.gguf", "a/b/c", ""])
def test_a_name_that_is_nothing_is_not_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=r"neither a file nor a folder nor a hub id|holds no config.json"):
        load_model(name)


def test_a_hub_id_that_cannot_be_fetched_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"owner/model: not in the hub's local cache .*no route to host"):
        load_model("owner/model")


def test_broken_folders_say_what_is_broken(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"not a \.gguf file"):
        load(folder / "config.json")
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelNotFound, match="the weights or the tokenizer cannot be read"):
        load(folder)
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not a header")
    with pytest.raises(ModelNotFound, match="the weights or the tokenizer cannot be read"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="holds no weights"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": "a-model-of-tomorrow"}')
    with pytest.raises(ModelNotFound, match="no config of a model that transformers knows"):
        load(folder)


def test_a_checkpoint_with_holes_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match=r"lacks 1 tensors, the first is model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"dtype": "int3"}, "dtype"), ({"device": "abacus"}, "device"), ({"attention": "none"}, "attention")],
)
def test_bad_settings_are_named(tiny_model: Path, settings: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_model(str(tiny_model), **settings)
    assert caught.value.field == field
