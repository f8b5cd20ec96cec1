"""A model whose weights lie in fewer bytes gives the very answers of one in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from runtime.execution.batch import BatchItem
from runtime.execution.model_runner import ModelRunner
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model, prepare_model
from runtime.native import NativeUnavailable
from runtime.native.weights import SWITCH, Format, panel_width
from tests.runtime.native.test_weights import matrix

BLOCK = 8
# What a GGUF file of one kind mixes, as the layers' places in this list.
KINDS = (Format.NIBBLES, Format.SIGNED_NIBBLES, Format.OCTETS, Format.BRAIN, Format.HALF, Format.FLOATS)


@pytest.fixture(autouse=True)
def _ours() -> None:
    try:
        if panel_width() < 48:
            pytest.skip("oneDNN serves on this CPU")
    except NativeUnavailable as why:
        pytest.skip(str(why))


def mixed(*, deterministic: bool) -> LoadedModel:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=128,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    network = LlamaForCausalLM(config)
    linears = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    for i, linear in enumerate(linears):
        torch.manual_seed(i)
        linear.weight.data = matrix(KINDS[i * 5 % len(KINDS)], *linear.weight.shape) * 0.0625
    return prepare_model(network, None, name="mixed", deterministic=deterministic)


def logits(loaded: LoadedModel, vocab: int) -> list[torch.Tensor]:
    """Of a prompt, of decoding steps behind it and of two sequences together."""
    runner = ModelRunner(loaded, 64, BLOCK, fill=float("nan"))
    dice = np.random.default_rng(1)
    tables = [np.arange(i * 24, (i + 1) * 24, dtype=np.int32) for i in range(2)]
    found, done = [], [0, 0]
    for counts in ((70, 0), (1, 33), (1, 1), (5, 1), (1, 1)):
        batch = [
            BatchItem(dice.integers(0, vocab, count).astype(np.int32), done[i], tables[i])
            for i, count in enumerate(counts)
            if count
        ]
        done = [before + count for before, count in zip(done, counts, strict=True)]
        laid_out = runner.prepare(batch)
        found.append(runner.run(laid_out, laid_out.logit_rows).clone())
    return found


@pytest.mark.parametrize("deterministic", [False, True])
def test_logits_have_the_same_bits(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = mixed(deterministic=deterministic)
    monkeypatch.setenv(SWITCH, "off")
    plain = mixed(deterministic=deterministic)
    assert "4-bit groups with offsets" in packed.info.weights
    assert "8-bit groups" in packed.info.weights
    assert "bfloat16" in packed.info.weights
    assert "numbers in float32:" in plain.info.weights
    assert "," not in plain.info.weights
    assert packed.info.fingerprint == plain.info.fingerprint
    for got, wanted in zip(logits(packed, 300), logits(plain, 300), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.models
@pytest.mark.slow
def test_smollm2_has_the_same_bits_in_a_fifth_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = load_model("smollm2", dtype="float32", device="cpu")
    assert packed.info.weights == (
        "106M numbers in 4-bit groups with offsets, 28M numbers in 8-bit groups: 92 MiB instead of 513"
    )
    ours = logits(packed, 40_000)
    monkeypatch.setenv(SWITCH, "off")
    plain = load_model("smollm2", dtype="float32", device="cpu")
    for got, wanted in zip(ours, logits(plain, 40_000), strict=True):
        assert torch.equal(got, wanted)
