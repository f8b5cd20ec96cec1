"""Chat templates of the shapes that popular models have, and a tokenizer that could split a text in many ways."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|eot|>", "[INST]", "[/INST]"]

# As Qwen3: the reasoning of replies before the last question is left out, that of a tool loop behind it stays.
THINKING = """\
{%- set asked = namespace(at=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set asked.at = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{{ '<|im_start|>tools\\n' ~ tools | tojson ~ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
  {%- set said, thought = m.content, '' %}
  {%- if m.role == 'assistant' and '</think>' in said %}
    {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
    {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
  {%- endif %}
  {{- '<|im_start|>' ~ ('user' if m.role == 'tool' else m.role) ~ '\\n' }}
  {%- if thought and loop.index0 > asked.at %}{{ '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' }}{% endif %}
  {{- '<result>' ~ said ~ '</result>' if m.role == 'tool' else said }}
  {%- for c in m.tool_calls or [] %}
    {{- '<tool_call>\\n{"name": "' ~ c.function.name ~ '", "arguments": ' ~ c.function.arguments | tojson }}
    {{- '}\\n</tool_call>' }}
  {%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# As Llama 3: a header for each message, the date in the first, contents stripped, tools in the first question.
HEADERS = """\
{%- set date = date_string or strftime_now('%d %b %Y') %}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{{- '<s><|head|>system<|/head|>\\n\\nToday is ' ~ date ~ '\\n\\n' ~ system | trim ~ '<|eot|>' }}
{%- set told = namespace(tools=false) %}
{%- for m in messages if m.role != 'system' %}
  {{- '<|head|>' ~ ('ipython' if m.role == 'tool' else m.role) ~ '<|/head|>\\n\\n' }}
  {%- if tools and m.role == 'user' and not told.tools %}
    {%- set told.tools = true %}
    {%- for tool in tools %}{{ tool | tojson ~ '\\n' }}{% endfor %}
  {%- endif %}
  {%- if m.tool_calls %}
    {%- set c = m.tool_calls[0].function %}
    {{- '{"name": "' ~ c.name ~ '", "parameters": ' ~ c.arguments | tojson ~ '}' }}
  {%- else %}{{ m.content | trim }}{% endif %}
  {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""
UNDATED = HEADERS.replace("Today is ' ~ date ~ '", "")

# As Mistral: the system prompt and the tools stand before the last question, wherever that is by then.
LAST_QUESTION = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set asked = namespace(at=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set asked.at = loop.index0 %}{% endif %}{% endfor %}
{{- '<s>' }}
{%- for m in messages if m.role != 'system' %}
  {%- set last = m is sameas messages[asked.at] %}
  {%- if m.role == 'user' %}
    {%- if last and tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
    {{- '[INST]' ~ (system ~ '\\n\\n' if last and system else '') ~ m.content ~ '[/INST]' }}
  {%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' ~ m.content ~ '[/TOOL_RESULTS]' }}
  {%- elif m.tool_calls %}
    {{- '[TOOL_CALLS][' }}
    {%- for c in m.tool_calls %}{{ c.function | tojson ~ (', ' if not loop.last else '') }}{% endfor %}
    {{- ']</s>' }}
  {%- else %}{{ m.content ~ '</s>' }}{% endif %}
{%- endfor %}"""

_SAMPLE = (
    "Once upon a time there was a river, and the river said: why not? 12, 13, 14.5!",
    "def main() -> None:\n    return [x for x in range(10)]\n\n\tpass  # done",
    '{"name": "look_up", "arguments": {"word": "prefix", "n": [1, 2, 3]}}',
    "naïve café à la carte, Größe, Ångström, žluťoučký kůň, Ελλάδα, Привет мир",
    "日本語の文章です。漢字とかな。 한국어 문장 🙂🙂 🎉🎉 👩‍👩‍👧 e\u0301e\u0301  \r\n\u00a0\u200b",
    "<think>\nsix by nine\n</think>\n\nForty-two. Forty-two, the the the  and   and",
)


def splitting_tokenizer(template: str | None, eos: str = "<|im_end|>") -> Any:
    """Byte-level BPE of 700 tokens, some of which end inside a character."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700, min_frequency=1, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([*_SAMPLE] * 4, trainer)
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        bos_token="<s>",
        additional_special_tokens=[token for token in SPECIAL if token not in (eos, "<s>")],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made
