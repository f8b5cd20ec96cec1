"""The smallest Llama of random weights that has layers, groups of heads and a padding token."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import prepare_model

VOCAB = 60
PAD = 0


def small_llama() -> LoadedModel:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=PAD,
    )
    return prepare_model(AutoModelForCausalLM.from_config(config, dtype=torch.float32), None, name="llama")
