"""The lean forward is taken where it computes what the model computes, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime.errors import InvalidRequest, ModelRefused
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.models.forward import ModelForward
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model, prepare_model
from tests.runtime.test_families import FAMILIES, VOCAB, assert_close, prompt, small

BLOCK = 4
LEAN = {
    "llama",
    "llama-yarn",
    "mistral-window",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "granite",
    "smollm3",
}
FIT: dict[str, Any] = {
    "biases": small("LlamaConfig", attention_bias=True, mlp_bias=True),
    "tied": small("LlamaConfig", tie_word_embeddings=True),
    "head norms": small("Qwen3Config", head_dim=16, attention_bias=True),
    "one query head to a key head": small("LlamaConfig", num_key_value_heads=4),
    "another activation": small("LlamaConfig", hidden_act="gelu"),
    "narrow heads": small("LlamaConfig", head_dim=4),
}
# Built like a Llama, but computes something else: what each takes to see it.
UNFIT: dict[str, Any] = {
    "multipliers": (small("GraniteConfig", residual_multiplier=0.5, logits_scaling=2.0), "differ from the ordinary"),
    "layers without rotation": (small("SmolLM3Config", no_rope_layers=[1, 0, 1]), "differ from the ordinary"),
    "a shifted norm": (small("GemmaConfig", head_dim=16), "GemmaRMSNorm is no RMS norm"),
    "experts": (small("MixtralConfig", num_local_experts=4), "is not built like a Llama's"),
}


def prepared(
    config: Any, forward: str = "auto", dtype: torch.dtype = torch.float32, attention: str = "auto"
) -> LoadedModel:
    torch.manual_seed(11)
    network = AutoModelForCausalLM.from_config(config(), dtype=dtype)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return prepare_model(network, None, name="model", forward=forward, attention=attention)


def items() -> list[BatchItem]:
    """A prompt, a part of one without logits, two tokens behind a cached one, a single token behind a cached one."""
    tables = np.random.default_rng(3).permutation(32).astype(np.int32).reshape(4, 8)
    lengths, starts, rows = (17, 9, 2, 1), (0, 0, 12, 20), (3, 0, 2, 1)
    return [
        BatchItem(prompt(seed, length), start, table, wanted)
        for seed, (length, start, table, wanted) in enumerate(zip(lengths, starts, tables, rows, strict=True))
    ]


def runs(loaded: LoadedModel) -> tuple[ModelRunner, torch.Tensor]:
    """The batch's logits behind the two cached beginnings, and the pool that they came from."""
    runner = ModelRunner(loaded, 32, BLOCK, fill=float("nan"))
    batch = items()
    runner.forward([BatchItem(prompt(50 + i, item.start), 0, item.table) for i, item in enumerate(batch) if item.start])
    return runner, runner.forward(batch)


def assert_equal_forwards(loaded: LoadedModel) -> None:
    assert loaded.info.forward == "lean"
    lean, got = runs(loaded)
    own, wanted = runs(replace(loaded, forward=ModelForward(loaded.model)))
    assert got.shape == (6, VOCAB)
    assert_close(got, wanted)
    for layer, kv in own.pool.layers.items():
        # Unwritten slots are NaN in both.
        torch.testing.assert_close(lean.pool.layers[layer].keys, kv.keys, rtol=1e-4, atol=1e-4, equal_nan=True)
        torch.testing.assert_close(lean.pool.layers[layer].values, kv.values, rtol=1e-4, atol=1e-4, equal_nan=True)


# Between its products: in C, in torch.
@pytest.mark.parametrize("attention", ["native", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_are_fit_run_on_it(family: str, attention: str) -> None:
    loaded = prepared(FAMILIES[family], attention=attention)
    assert loaded.info.forward == ("lean" if family in LEAN else "model")
    if family in LEAN:
        assert_equal_forwards(loaded)


@pytest.mark.parametrize("attention", ["native", "sdpa"])
@pytest.mark.parametrize("name", FIT)
def test_what_llamas_may_have(name: str, attention: str) -> None:
    assert_equal_forwards(prepared(FIT[name], attention=attention))


@pytest.mark.parametrize("name", UNFIT)
def test_models_that_compute_something_else_keep_their_own(name: str) -> None:
    config, why = UNFIT[name]
    assert prepared(config).info.forward == "model"
    with pytest.raises(ModelRefused, match=f"cannot run on the lean forward: .*{why}"):
        prepared(config, "lean")


def test_a_hook_that_somebody_set_is_not_passed_over() -> None:
    torch.manual_seed(11)
    network = AutoModelForCausalLM.from_config(FAMILIES["llama"](), dtype=torch.float32)
    network.model.layers[1].mlp.register_forward_hook(lambda module, args, out: out * 1.0001)
    assert prepare_model(network, None, name="hooked").info.forward == "model"


def test_rows_come_in_the_order_that_they_are_asked_for() -> None:
    runner = ModelRunner(prepared(FAMILIES["llama"]), 32, BLOCK, fill=float("nan"))
    plan = StepPlan([BatchItem(prompt(1, 20), 0, np.arange(8, dtype=np.int32))], BLOCK, 32, runner.pool.device)
    every = runner.run(plan, torch.arange(20))
    some = torch.tensor([19, 3, 7])
    assert_close(runner.run(plan, some), every[some])
    assert runner.run(plan, some[:0]).shape == (0, VOCAB)


def test_the_choice_is_yours(tiny_model: Any) -> None:
    assert load_model(str(tiny_model), dtype="fp32", device="cpu").info.forward == "lean"
    assert load_model(str(tiny_model), dtype="fp32", device="cpu", forward="model").info.forward == "model"
    with pytest.raises(InvalidRequest, match="forward is 'fast': must be one of auto, lean, model"):
        load_model(str(tiny_model), forward="fast")


def test_half_precision_is_held_to_its_own_tolerance() -> None:
    loaded = prepared(FAMILIES["llama"], dtype=torch.bfloat16)
    assert loaded.info.forward == "lean"
    got = runs(loaded)[1]
    wanted = runs(replace(loaded, forward=ModelForward(loaded.model)))[1]
    assert got.dtype == torch.float32
    assert float((got - wanted).norm() / wanted.norm()) < 5e-2
