"""What is refused at load, and that the probe sees what a refusal list cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from runtime.attention import AttentionOptions, ReferenceAttention
from runtime.errors import ModelRefused
from runtime.models.loader import load_model, prepare_model
from runtime.models.probe import probe

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def small(config: str, **fields: Any) -> PreTrainedConfig:
    made: PreTrainedConfig = getattr(transformers, config)(**{**SMALL, **fields})
    return made


REFUSED: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "bloom": (
        lambda: transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
        "BloomForCausalLM computes attention inside its layers and bypasses",
    ),
    "mpt": (
        lambda: transformers.MptConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4),
        "MptForCausalLM .*bypasses",
    ),
    "falcon-alibi": (
        lambda: transformers.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, alibi=True),
        "FalconForCausalLM .*bypasses",
    ),
    "mamba": (
        lambda: transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2),
        "mamba has .*Mamba.*state belongs to one point of one sequence",
    ),
    "rwkv": (
        lambda: transformers.RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2),
        "rwkv has recurrent .*layers",
    ),
    "jamba": (lambda: small("JambaConfig"), "jamba has linear_attention layers"),
    "qwen3-next": (lambda: small("Qwen3NextConfig", head_dim=16), "qwen3_next has linear_attention layers"),
    "llama4-chunked": (
        lambda: small("Llama4TextConfig", num_local_experts=2),
        "llama4_text has chunked_attention layers",
    ),
    "longrope": (
        lambda: small("Phi3Config", original_max_position_embeddings=256, rope_parameters=LONGROPE),
        "phi3 uses RoPE of type 'longrope': its frequencies change",
    ),
    "dynamic-rope": (
        lambda: small("LlamaConfig", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        "llama uses RoPE of type 'dynamic'",
    ),
    "encoder-decoder": (
        lambda: transformers.T5Config(vocab_size=64, d_model=32, num_layers=2),
        "t5 is an encoder-decoder",
    ),
    "vision": (transformers.ViTConfig, "vit is no decoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_before_weights_are_read(name: str, tmp_path: Path) -> None:
    make, why = REFUSED[name]
    make().save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match=why):
        load_model(str(tmp_path), device="cpu")


def test_both_directions_are_refused() -> None:
    config = transformers.BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    network = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelRefused, match="BertSelfAttention attends in both directions"):
        prepare_model(network, None, name="bert")


def build(config: PreTrainedConfig) -> Any:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def test_a_layer_that_bypasses_the_hook_is_counted() -> None:
    network = build(small("LlamaConfig"))
    layer = network.model.layers[1].self_attn
    # A layer with a config of its own keeps its own attention, as remote code would.
    layer.config = transformers.LlamaConfig(**SMALL, attn_implementation="eager")
    with pytest.raises(ModelRefused, match=r"1 attention calls for layers \[0\].*has 2 layers: some bypass"):
        prepare_model(network, None, name="llama")


def test_layers_that_share_an_index_are_refused() -> None:
    network = build(small("LlamaConfig"))
    network.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(ModelRefused, match="share keys and values"):
        prepare_model(network, None, name="llama")


class Forgetful(ReferenceAttention):
    """Leaves one thing out."""

    def __init__(self, without: dict[str, Any]) -> None:
        self._without = without

    def __call__(self, query: Any, kv: Any, plan: Any, options: AttentionOptions) -> Any:
        return super().__call__(query, kv, plan, dataclasses.replace(options, **self._without))


@pytest.mark.parametrize(
    ("config", "without"),
    [
        (small("MistralConfig", sliding_window=400), {"window": None}),
        (small("MistralConfig", sliding_window=9), {"window": 10}),
        (small("Gemma2Config", head_dim=16, attn_logit_softcapping=3.0), {"softcap": None}),
        (small("GraniteConfig", attention_multiplier=0.5), {"scale": 8**-0.5}),
        (small("GptOssConfig", head_dim=16, num_local_experts=4, num_experts_per_tok=2), {"sinks": None}),
    ],
    ids=["window", "window-off-by-one", "softcap", "scale", "sinks"],
)
def test_the_probe_sees_attention_that_differs(
    config: PreTrainedConfig, without: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build(config)
    loaded = prepare_model(network, None, name="honest")
    windows = [getattr(module, "sliding_window", None) for module in network.modules()]
    monkeypatch.setattr("runtime.execution.model_runner.make_backend", lambda _: Forgetful(without))
    with pytest.raises(ModelRefused, match=r"differ from the ordinary forward by .*limit 0\.001"):
        probe(loaded)
    # The probe shortens windows to see them; it must leave them as they were.
    assert [getattr(module, "sliding_window", None) for module in network.modules()] == windows
    assert network.config._attn_implementation == "radixloop_paged"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes_at_its_own_tolerance(dtype: torch.dtype) -> None:
    network = build(small("Qwen3Config", head_dim=16)).to(dtype)
    loaded = prepare_model(network, None, name="half")
    assert loaded.info.kv_dtype == {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    assert loaded.info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
