"""Chat templates of several characters, tokenizers for them, and the messages of a short tool loop."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from runtime.prompting.chat import ChatRenderer

# As ChatML: any role, no tools.
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Tools, calls and results of its own.
NATIVE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Joins the arguments of a call to other text.
TEXT_ARGUMENTS = NATIVE.replace("{{ c.function | tojson }}", "{{ c.function.name + '|' + c.function.arguments }}")
# User and assistant in turns, nobody else.
ALTERNATING = (
    "{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('Only user and assistant here!') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate!') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
# A result must stand behind the call that it answers.
PAIRED = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call!') }}{% endif %}"
    "{{ '[TOOL]' if m.role == 'tool' else '[INST]' if m.role == 'user' else '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[CALL]{{ c.function | tojson }}{% endfor %}"
    "{{ eos_token if m.role == 'assistant' }}{% endfor %}"
)
# Reads from the call which tool a result is of.
BY_ID = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% set found = namespace(name=none) %}"
    "{% for other in messages[:loop.index0] %}{% for c in other.tool_calls or [] if c.id == m.tool_call_id %}"
    "{% set found.name = c.function.name %}{% endfor %}{% endfor %}"
    "{{ '[TOOL ' ~ found.name ~ ']' if found.name else raise_exception('no such call!') }}"
    "{% elif m.role == 'user' %}[INST]{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[CALL]{{ c.function | tojson }}{% endfor %}"
    "{{ eos_token if m.role == 'assistant' }}{% endfor %}"
)
# Strips the reasoning of all replies but the last, as thinking models' templates do.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Reads content as a list of parts, as templates of models that see images do.
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAST_ONLY = "<|im_start|>user\n{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n"
SYSTEM_FIRST = (
    "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
TOOL = {
    "type": "function",
    "function": {"name": "list_files", "description": "List ä folder", "parameters": {"type": "object"}},
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "list_files", "arguments": '{"path": "ä"}'}}
USER = {"role": "user", "content": "What is here?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "a.txt", "tool_call_id": "abcdefghi", "name": "list_files"}
ANSWER = {"role": "assistant", "content": "A file."}


def tokenizer(template: str | None) -> Any:
    """Byte by byte, with three special tokens."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: rank for rank, token in enumerate(special + alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    wrapped: Any = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", additional_special_tokens=special[:2]
    )
    wrapped.chat_template = template
    return wrapped


def spaced_tokenizer(template: str) -> Any:
    """As Llama 2: puts a space in front of every text that it encodes."""
    letters = [chr(code) for code in range(33, 127)]
    vocab = {piece: rank for rank, piece in enumerate(["<unk>", "<s>", "</s>", "▁", "\n", *letters, "▁h", "hi", "▁hi"])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "i"), ("▁", "hi")], unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<s>", "</s>")])
    wrapped: Any = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    wrapped.chat_template = template
    return wrapped


def prompt_ids(own: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
    """The token ids of a whole chat."""
    text = ChatRenderer(own).render(messages, tools)
    ids: list[int] = own(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def renderer(template: str | None) -> ChatRenderer:
    return ChatRenderer(tokenizer(template))
