"""A model whose tokens the tokenizer would often have chosen otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import prepare_model
from tests.runtime.histories.shapes import splitting_tokenizer

Talking = Callable[[str | None], LoadedModel]


@pytest.fixture(scope="session")
def talking() -> Talking:
    """The same random Llama with any chat template."""
    torch.manual_seed(11)
    tokenizer = splitting_tokenizer(None)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    loaded = prepare_model(LlamaForCausalLM(config), tokenizer, name="talking")

    def with_template(template: str | None) -> LoadedModel:
        info = replace(loaded.info, has_chat_template=template is not None)
        return replace(loaded, tokenizer=splitting_tokenizer(template), info=info)

    return with_template
