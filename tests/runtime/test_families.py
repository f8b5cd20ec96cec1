"""Every attention family through the paged cache against transformers' ordinary eager forward, on random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from radix import Copy
from runtime.attention import make_backend
from runtime.execution.batch import BatchItem, StepPlan
from runtime.execution.model_runner import ModelRunner
from runtime.models.forward import ModelForward
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import prepare_model
from tests.runtime.plain_forward import ordinary

BLOCK = 4
WINDOW = 7
VOCAB = 96
LENGTH = 30

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Wide enough that attention decides the answer: with the default the layers would hardly matter.
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MLA = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def small(config: str, **fields: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, config)(**{**SMALL, **fields})


def bare(config: str, **fields: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, config)(vocab_size=VOCAB, initializer_range=0.3, **fields)


GPT2_LIKE = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": small("LlamaConfig"),
    "llama-yarn": small("LlamaConfig", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}),
    "mistral-window": small("MistralConfig", sliding_window=WINDOW),
    "mixtral": small("MixtralConfig", num_local_experts=4),
    "qwen2": small("Qwen2Config"),
    "qwen2-window": small("Qwen2Config", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": small("Qwen3Config", head_dim=16),
    "qwen3-moe": small("Qwen3MoeConfig", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "gemma": small("GemmaConfig", head_dim=16),
    "gemma2-softcap": small(
        "Gemma2Config", head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16, attn_logit_softcapping=3.0
    ),
    "gemma3": small(
        "Gemma3TextConfig", head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16, layer_types=MIXED
    ),
    "phi": small("PhiConfig"),
    "phi3": small("Phi3Config"),
    "gpt-oss-sinks": small(
        "GptOssConfig",
        head_dim=16,
        sliding_window=WINDOW,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=MIXED,
    ),
    "gpt-neox": small("GPTNeoXConfig"),
    "opt": bare(
        "OPTConfig",
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
        init_std=0.3,
    ),
    "gpt2": bare("GPT2Config", **GPT2_LIKE),
    "granite": small("GraniteConfig"),
    "olmo2": small("Olmo2Config"),
    "olmo3": small("Olmo3Config", sliding_window=WINDOW, layer_types=MIXED),
    "cohere2": small("Cohere2Config", sliding_window=WINDOW),
    "smollm3": small("SmolLM3Config"),
    "starcoder2": small("Starcoder2Config", sliding_window=WINDOW),
    "glm": small("GlmConfig", head_dim=8),
    "nemotron": small("NemotronConfig"),
    "deepseek-v3-mla": small("DeepseekV3Config", **{"num_key_value_heads": 4, **MLA}),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    torch.manual_seed(11)
    network = transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param](), dtype=torch.float32)
    for name, parameter in network.named_parameters():
        # Sinks and biases start at zero, where leaving them out would go unseen.
        if name.endswith(("sinks", "bias")):
            torch.nn.init.normal_(parameter, std=0.5)
    return prepare_model(network, None, name=request.param)


@pytest.fixture(params=[pytest.param("reference", marks=pytest.mark.slow), "sdpa", "native"])
def runner(request: pytest.FixtureRequest, loaded: LoadedModel) -> ModelRunner:
    if request.param == "reference":
        # The plain path of both: transformers' own forward also where a leaner one has its place.
        loaded = replace(loaded, forward=ModelForward(loaded.model))
    runner = ModelRunner(loaded, 64, BLOCK, fill=float("nan"))
    runner.backend = make_backend(request.param)
    return runner


def prompt(seed: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.int32)


def all_rows(runner: ModelRunner, items: list[BatchItem]) -> list[torch.Tensor]:
    """The logits of every token of every item."""
    plan = StepPlan(items, runner.pool.block_size, runner.pool.num_blocks, runner.pool.device)
    logits = runner.run(plan, torch.arange(plan.total))
    return list(torch.split(logits, [len(item.tokens) for item in items]))


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_prefill_and_every_split(loaded: LoadedModel, runner: ModelRunner) -> None:
    tokens = prompt(1)
    wanted = ordinary(loaded, tokens)
    scattered = np.random.default_rng(2).permutation(64)[:8].astype(np.int32)
    neighbours = np.arange(8, 16, dtype=np.int32)
    assert_close(all_rows(runner, [BatchItem(tokens, 0, scattered)])[0], wanted)
    for split in range(1, LENGTH):
        table = scattered if split % 2 else neighbours
        head = all_rows(runner, [BatchItem(tokens[:split], 0, table)])[0]
        tail = all_rows(runner, [BatchItem(tokens[split:], split, table)])[0]
        assert_close(torch.cat([head, tail]), wanted)


def test_ragged_batch_with_decode(loaded: LoadedModel, runner: ModelRunner) -> None:
    prompts = [prompt(seed, length) for seed, length in ((3, 30), (4, 13), (5, 21), (6, 9), (7, 17))]
    wanted = [ordinary(loaded, tokens) for tokens in prompts]
    tables = np.random.default_rng(8).permutation(64)[:40].astype(np.int32).reshape(5, 8)
    heads = [29, 0, 9, 8, 16]
    before = [BatchItem(p[:h], 0, t) for p, h, t in zip(prompts, heads, tables, strict=True) if h]
    runner.forward(before)
    batch = [BatchItem(p[h:], h, t) for p, h, t in zip(prompts, heads, tables, strict=True)]
    for got, full, head in zip(all_rows(runner, batch), wanted, heads, strict=True):
        assert_close(got, full[head:])
    batch[2].logit_rows = 0
    last = runner.forward(batch)
    assert_close(last, torch.stack([full[-1] for index, full in enumerate(wanted) if index != 2]))


def test_every_reuse_length_from_copied_partial_blocks(loaded: LoadedModel, runner: ModelRunner) -> None:
    trunk = prompt(9, 2 * BLOCK)
    trunk_table = np.array([3, 60], dtype=np.int32)
    runner.forward([BatchItem(trunk, 0, trunk_table)])
    for reused in range(2 * BLOCK + 1):
        tokens = np.concatenate([trunk[:reused], prompt(100 + reused, 9)])
        full, rest = divmod(reused, BLOCK)
        table = np.array([*trunk_table[:full], *range(20, 26)], dtype=np.int32)
        if rest:
            runner.copy_blocks([Copy(src=int(trunk_table[full]), dst=20, tokens=rest)])
        got = all_rows(runner, [BatchItem(tokens[reused:], reused, table)])[0]
        assert_close(got, ordinary(loaded, tokens)[reused:])
