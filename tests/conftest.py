"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# As the runtime's own entry point does, before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

TINY_CONTEXT = 4096
TINY_TEMPLATE = (
    "{% if tools %}<|system|>Tools: {{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('unknown role ' ~ message.role) }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of 4,096 tokens of context and a byte-level tokenizer with a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-llama")
    special = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(special + alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        additional_special_tokens=special[2:],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TINY_TEMPLATE
    tokenizer.save_pretrained(folder)

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TINY_CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # Wide enough that greedy answers wander instead of repeating one token.
        initializer_range=0.4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
