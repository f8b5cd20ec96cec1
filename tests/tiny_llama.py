"""A random Llama that is loaded from its folder as any other model is."""

from __future__ import annotations

from pathlib import Path

CONTEXT = 4096
TEMPLATE = (
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


def save_tiny_llama(folder: Path) -> None:
    """Write a Llama of 4,096 tokens of context and a byte-level tokenizer with a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
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
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # Wide enough that greedy answers wander instead of repeating one token.
        initializer_range=0.4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
