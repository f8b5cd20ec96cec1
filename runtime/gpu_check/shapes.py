"""Models of known shapes with random weights: their speed is that of trained ones, and nothing is fetched."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import prepare_model

# Decoding behind 32k tokens needs room after them.
_CONTEXT = 65536
_QWEN25_7B = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
_QWEN25_1_5B = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
_TINY = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
SIZES: dict[str, dict[str, Any]] = {"7b": _QWEN25_7B, "1.5b": _QWEN25_1_5B, "tiny": _TINY}


@dataclass(frozen=True)
class Costs:
    """What a forward pass moves and computes, for shares of the device's limits.

    weight_bytes: read by every step. product_weights: numbers that each token is multiplied with. head_weights: of the
    output head, for each token whose logits are wanted. attention_flops: of one query over one key, all layers.
    """

    weight_bytes: int
    product_weights: int
    head_weights: int
    attention_flops: int

    def step_bytes(self, kv_tokens: int, kv_bytes_per_token: int) -> int:
        """Bytes read by a decode step whose rows attend to `kv_tokens` keys together."""
        return self.weight_bytes + kv_tokens * kv_bytes_per_token

    def prefill_flops(self, tokens: int) -> int:
        """Operations of a prompt of `tokens`, the logits of its last token included."""
        attended = tokens * (tokens + 1) // 2
        return 2 * (self.product_weights * tokens + self.head_weights) + self.attention_flops * attended


def build(
    size: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    attention: str,
    block_size: int,
    tell: Callable[[str], None],
) -> tuple[LoadedModel, Costs]:
    """A servable model of that size with random weights, and what its forward costs.

    Raises what prepare_model raises.
    """
    config = Qwen2Config(**SIZES[size], max_position_embeddings=_CONTEXT, eos_token_id=None, bos_token_id=None)
    began = time.monotonic()
    torch.manual_seed(0)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    costs = _costs(network)
    tell(f"made {costs.product_weights / 1e9:.2f} G weights in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    loaded = prepare_model(
        network, _tokenizer(config.vocab_size), name=size, attention=attention, block_size=block_size
    )
    tell(
        f"prepared it in {time.monotonic() - began:.1f} s: attention {loaded.info.attention_backend}, "
        f"forward {loaded.info.forward}"
    )
    return loaded, costs


def _costs(network: Any) -> Costs:
    config = network.config
    head = network.get_output_embeddings().weight
    embedding = network.get_input_embeddings().weight
    numbers = {id(p): p for p in network.parameters()}
    inside = sum(p.numel() for p in numbers.values() if p is not head and p is not embedding)
    dim = config.hidden_size // config.num_attention_heads
    return Costs(
        weight_bytes=(inside + head.numel()) * head.element_size(),
        product_weights=inside,
        head_weights=head.numel(),
        # Scores and weighted values: two operations each for every number of every head.
        attention_flops=4 * config.num_hidden_layers * config.num_attention_heads * dim,
    )


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(vocab_size)}
    model = Tokenizer(WordLevel(words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=model)  # type: ignore[no-untyped-call]
