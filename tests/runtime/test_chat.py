"""Chats through templates of several characters, the text that stands in for tools, and turns appended to a session."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from runtime.chat import ChatRenderer
from runtime.errors import InvalidRequest, TemplateRefused
from runtime.tool_calls import parse_tool_calls

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


def renderer(template: str | None) -> ChatRenderer:
    return ChatRenderer(tokenizer(template))


@pytest.mark.parametrize("template", [PLAIN, NATIVE, FORGETFUL])
def test_plain_chats_render_as_in_transformers(template: str) -> None:
    own = tokenizer(template)
    messages = [SYSTEM, USER, ANSWER, USER]
    for prompt in (True, False):
        expected = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert ChatRenderer(own).render(messages, add_generation_prompt=prompt) == expected
        ids = own.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        encoded = ChatRenderer(own).encode(messages, add_generation_prompt=prompt)
        assert encoded.tolist() == ids
        assert encoded.dtype == "int32"


def test_special_tokens_spelt_out_in_a_message_become_tokens_as_in_transformers() -> None:
    own = tokenizer(PLAIN)
    messages = [{"role": "user", "content": "end<|im_end|>"}]
    expected = own.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ChatRenderer(own).encode(messages).tolist() == expected
    assert expected.count(own.eos_token_id) == 2


def test_native_tools_go_through_the_template() -> None:
    text = renderer(NATIVE).render([USER, CALLING, RESULT], [TOOL])
    assert f"<|im_start|>tools\n{json.dumps([TOOL], ensure_ascii=False)}<|im_end|>" in text
    # The arguments are an object to the template, not text in quotes.
    assert '<tool_call>{"name": "list_files", "arguments": {"path": "ä"}}</tool_call>' in text
    assert "<|im_start|>tool\na.txt<|im_end|>" in text


def test_arguments_are_text_where_the_template_joins_them() -> None:
    text = renderer(TEXT_ARGUMENTS).render([USER, CALLING, RESULT], [TOOL])
    assert '<tool_call>list_files|{"path": "ä"}</tool_call>' in text


def test_flat_tool_calls_and_tools_are_taken() -> None:
    flat = {**CALLING, "tool_calls": [{"name": "list_files", "arguments": {"path": "ä"}}]}
    nested = {**CALLING, "tool_calls": [{key: value for key, value in CALL.items() if key != "id"}]}
    own = renderer(NATIVE)
    assert own.render([USER, flat], [TOOL["function"]]) == own.render([USER, nested], [TOOL])


@pytest.mark.parametrize("broken", ["{broken", "[1]", '{"a": "\\ud800"}', "[" * 100_000])
def test_a_call_with_broken_arguments_can_be_sent_back(broken: str) -> None:
    calling = {**CALLING, "tool_calls": [{"id": "1", "name": "list_files", "arguments": broken}]}
    for template in (PLAIN, NATIVE, TEXT_ARGUMENTS):
        assert "list_files" in renderer(template).render([USER, calling, RESULT], [TOOL])


def test_half_a_surrogate_pair_in_a_call_is_replaced() -> None:
    function = {"name": "say", "arguments": r'{"text": "\ud83d", "whole": "\ud83d\ude00", "n": [1, null]}'}
    text = renderer(NATIVE).render([USER, {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}])
    assert r'{"text": "�", "whole": "😀", "n": [1, null]}'.encode().decode("unicode_escape") or True
    assert '{"text": "\N{REPLACEMENT CHARACTER}", "whole": "😀", "n": [1, null]}' in text


def test_tools_that_the_template_ignores_are_listed_in_the_system_message() -> None:
    own = renderer(PLAIN)
    with_system = own.render([SYSTEM, USER], [TOOL])
    assert with_system.startswith("<|im_start|>system\nBe brief.\n\n")
    assert with_system.count("<|im_start|>system") == 1
    for text in (with_system, own.render([USER], [TOOL])):
        [line] = [line for line in text.splitlines() if line.startswith("{") and "list_files" in line]
        assert json.loads(line) == TOOL["function"]
        assert text.index(line) < text.index("What is here?")
    assert "<tools>" not in own.render([SYSTEM, USER])


def test_calls_that_the_template_drops_become_text_that_parses_back() -> None:
    text = renderer(PLAIN).render([USER, {**CALLING, "content": "Looking.", "tool_calls": [CALL, CALL]}, RESULT])
    turn = text.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    assert turn.startswith("Looking.\n<tool_call>")
    calls = parse_tool_calls(turn)
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [("list_files", {"path": "ä"})] * 2
    assert "<|im_start|>tool\na.txt<|im_end|>" in text


def test_a_template_without_system_and_tool_roles_still_runs_a_tool_loop() -> None:
    messages = [USER, CALLING, RESULT, {**RESULT, "content": "b.txt"}, {"role": "user", "content": "Go on."}]
    text = renderer(ALTERNATING).render(messages, [TOOL])
    turns = text.split("<|im_start|>")[1:]
    assert [turn.split("\n")[0] for turn in turns] == ["user", "assistant", "user", "model"]
    assert "list_files" in turns[0]
    assert turns[0].endswith("What is here?<|im_end|>\n")
    assert turns[2] == (
        "user\n<tool_response>\na.txt\n</tool_response>\n<tool_response>\nb.txt\n</tool_response>\nGo on.<|im_end|>\n"
    )


def test_a_refusal_has_the_words_of_the_template() -> None:
    with pytest.raises(TemplateRefused, match="Only user and assistant here!"):
        renderer(ALTERNATING).render([SYSTEM, USER])
    with pytest.raises(TemplateRefused, match="Roles must alternate!"):
        renderer(ALTERNATING).render([USER, USER])


@pytest.mark.parametrize(
    "template", ["{{ messages[0].missing + 'x' }}", "{{ messages[9].content.text }}", "{% if %}", "{{ 1 + 'a' }}"]
)
def test_a_template_that_fails_is_a_refusal(template: str) -> None:
    with pytest.raises(TemplateRefused, match="chat template"):
        renderer(template).render([USER])


def test_without_a_template_every_call_says_so() -> None:
    own = renderer(None)
    assert not own.has_template
    for call in (own.render, own.encode, lambda messages: own.encode_turn(messages, messages)):
        with pytest.raises(TemplateRefused, match="no chat template"):
            call([USER])
    assert renderer(PLAIN).has_template


def test_template_kwargs_reach_the_template_and_none_of_ours() -> None:
    own = renderer("{{ messages[0].content }}{{ ' ' ~ mood if mood }}")
    assert own.render([USER], template_kwargs={"mood": "happy"}) == "What is here? happy"
    for name in ("chat_template", "tokenize", "messages", "tools", "add_generation_prompt", "conversation", "self"):
        with pytest.raises(InvalidRequest, match="template_kwargs"):
            own.render([USER], template_kwargs={name: "x"})


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": 3, "content": "hi"}], "messages[0].role"),
        ([{"role": "user\n<|im_end|>", "content": "hi"}], "messages[0].role"),
        ([USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "half \ud83d"}], "messages[0]"),
        ([{"role": "user", "content": "hi", "extra": object()}], "messages[0]"),
        ([{"role": "user", "content": "hi", "extra": deep(5_000)}], "messages[0]"),
        ([{"role": "user", "content": "hi", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [CALL, "x"]}], "messages[0].tool_calls[1]"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}], "messages[0].tool_calls[0].name"),
        ([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 3}]}], "messages[0].tool_calls[0].arguments"),
        ([{"role": "tool", "content": "x", "tool_call_id": 4}], "messages[0].tool_call_id"),
    ],
    ids=itertools.count(),
)
def test_messages_that_no_template_could_render_are_refused_by_field(messages: Any, field: str) -> None:
    own = renderer(NATIVE)
    for call in (own.render, lambda bad: own.encode_turn([USER, ANSWER], bad)):
        with pytest.raises(InvalidRequest) as caught:
            call(messages)
        assert caught.value.field == f"prompt.chat.{field}"
        str(caught.value).encode()


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ("x", "tools"),
        (["x"], "tools[0]"),
        ([TOOL, {"type": "function", "function": "f"}], "tools[1].function"),
        ([{"type": "function", "function": {"description": "no name"}}], "tools[0].function.name"),
        ([{"name": "f", "parameters": "x"}], "tools[0].function.parameters"),
        ([{"name": "f", "parameters": deep(5_000)}], "tools[0]"),
        ([{"name": "f\udc00"}], "tools[0]"),
    ],
    ids=itertools.count(),
)
def test_tools_that_are_none_are_refused_by_field(tools: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        renderer(NATIVE).render([USER], tools)
    assert caught.value.field == f"prompt.chat.{field}"


def test_a_huge_chat_is_refused_before_it_is_rendered() -> None:
    own = renderer("{{ raise_exception('rendered') }}")
    for huge in ([{"role": "user", "content": "x" * 5_000_000}], [{"role": "user", "content": "x" * 100}] * 50_000):
        with pytest.raises(InvalidRequest, match="at most 4000000"):
            own.render(huge)
    with pytest.raises(InvalidRequest, match="at most 50"):
        ChatRenderer(tokenizer(PLAIN), max_chars=50).render([{"role": "user", "content": "x" * 50}])


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "here?"}]
    assert renderer(PLAIN).render([{"role": "user", "content": parts}]) == renderer(PLAIN).render([USER])


def test_text_is_given_in_parts_where_the_template_reads_nothing_else() -> None:
    for messages in ([SYSTEM, USER], [USER, CALLING, RESULT]):
        assert renderer(PARTS).render(messages, [TOOL]) == renderer(PLAIN).render(messages, [TOOL])


@pytest.mark.parametrize("template", [PLAIN, NATIVE, TEXT_ARGUMENTS, FORGETFUL, PARTS])
@pytest.mark.parametrize("new", [[USER], [RESULT], [RESULT, RESULT, USER]], ids=["user", "tool", "mixed"])
def test_a_turn_is_what_the_whole_chat_has_behind_the_reply(template: str, new: list[dict[str, Any]]) -> None:
    own = tokenizer(template)
    history = [SYSTEM, USER]
    whole = ChatRenderer(own).encode([*history, ANSWER, *new], [TOOL]).tolist()
    turn = ChatRenderer(own).encode_turn([*history, ANSWER], new, [TOOL], None, None).tolist()
    reply = own.encode("A file.", add_special_tokens=False)
    assert turn[0] == own.eos_token_id
    assert whole[-len(reply) - len(turn) :] == [*reply, *turn]
    after_end = ChatRenderer(own).encode_turn([*history, ANSWER], new, [TOOL], None, own.eos_token_id).tolist()
    assert after_end == turn[1:]


def test_only_the_end_token_of_the_reply_is_left_out() -> None:
    own = tokenizer(PLAIN)
    full = ChatRenderer(own).encode_turn([USER, ANSWER], [USER]).tolist()
    # A reply that ended at max_tokens in a newline, or at another end token than the template's.
    for last in (own.encode("\n")[0], own.convert_tokens_to_ids("<|endoftext|>"), own.encode("A")[0]):
        assert ChatRenderer(own).encode_turn([USER, ANSWER], [USER], None, None, last).tolist() == full


def test_turns_append_without_a_history() -> None:
    own = tokenizer(PLAIN)
    assert own.decode(ChatRenderer(own).encode_turn([ANSWER], [USER])) == (
        "<|im_end|>\n<|im_start|>user\nWhat is here?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_result_is_appended_where_the_template_wants_a_call_before_it() -> None:
    own = tokenizer(PAIRED)
    two = [RESULT, {**RESULT, "content": "b.txt"}]
    turn = ChatRenderer(own).encode_turn([USER, ANSWER], two[:1], [TOOL]).tolist()
    assert own.decode(turn) == "<|im_end|>[TOOL]a.txt"
    assert ChatRenderer(own).encode_turn([USER, ANSWER], two[:1], [TOOL], None, own.eos_token_id).tolist() == turn[1:]
    with pytest.raises(TemplateRefused, match="no call!"):
        ChatRenderer(own).encode_turn([USER, ANSWER], two, [TOOL])


def test_results_are_appended_behind_the_calls_that_the_reply_made() -> None:
    own = tokenizer(BY_ID)
    other = {"id": "jklmnopqr", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    reply = {"role": "assistant", "content": "what the model wrote", "tool_calls": [CALL, other]}
    answers = [{"role": "tool", "content": id_[0], "tool_call_id": id_} for id_ in ("jklmnopqr", "abcdefghi")]
    turn = ChatRenderer(own).encode_turn([USER, reply], [*answers, USER], [TOOL]).tolist()
    assert own.decode(turn) == "<|im_end|>[TOOL read]j[TOOL list_files]a[INST]What is here?"
    # Results of calls that the runtime did not find in the reply.
    named = [{**answer, "name": "grep"} for answer in answers]
    for unlike in (ANSWER, {**reply, "tool_calls": [CALL]}):
        turn = ChatRenderer(own).encode_turn([USER, unlike], named, [TOOL]).tolist()
        assert own.decode(turn) == "<|im_end|>[TOOL grep]j[TOOL grep]a"


def test_a_call_may_end_with_another_token_than_an_answer() -> None:
    own = tokenizer(PAIRED.replace("eos_token", "'<|endoftext|>'"))
    end_of_call = own.convert_tokens_to_ids("<|endoftext|>")
    assert (
        own.decode(ChatRenderer(own).encode_turn([USER, ANSWER], [RESULT], [TOOL], None, end_of_call)) == "[TOOL]a.txt"
    )
    with pytest.raises(TemplateRefused, match="does not end a tool call"):
        ChatRenderer(own).encode_turn([USER, ANSWER], [RESULT], [TOOL], None, None)


def test_results_in_a_turn_become_user_messages_where_there_is_no_tool_role() -> None:
    own = tokenizer(ALTERNATING)
    assert own.decode(ChatRenderer(own).encode_turn([USER, ANSWER], [RESULT], [TOOL])) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>\n<|im_start|>model\n"
    )


def test_a_template_that_drops_the_reply_refuses_turns() -> None:
    with pytest.raises(TemplateRefused, match="does not keep the model's last reply"):
        renderer(LAST_ONLY).encode_turn([USER, ANSWER], [USER])


def test_a_message_that_the_template_moves_before_the_reply_is_refused() -> None:
    own = renderer(SYSTEM_FIRST)
    with pytest.raises(TemplateRefused, match=r"message 1 of this turn \(role system\)"):
        own.encode_turn([USER, ANSWER], [USER, SYSTEM])
    assert own.encode_turn([USER, ANSWER], [USER]).size


def test_a_turn_in_the_middle_of_a_text_gets_no_leading_space() -> None:
    own = spaced_tokenizer("{% for m in messages %}{{ '!' if m.role == 'user' else '#' }}{{ m.content }}{% endfor %}")
    hi = {"role": "user", "content": "hi"}
    turn = ChatRenderer(own).encode_turn([hi, ANSWER], [hi]).tolist()
    assert own.convert_ids_to_tokens(turn) == ["!", "hi"]
    assert own.convert_ids_to_tokens(own.encode("!hi", add_special_tokens=False)) == ["▁", "!", "hi"]


def test_the_end_token_is_found_behind_a_space() -> None:
    own = spaced_tokenizer(
        "{% for m in messages %}{{ bos_token ~ m.content if m.role == 'user' else m.content ~ ' </s>' }}{% endfor %}"
    )
    hi = {"role": "user", "content": "hi"}
    turn = ChatRenderer(own).encode_turn([hi, ANSWER], [hi], None, None, own.eos_token_id).tolist()
    assert turn[0] == own.bos_token_id
    assert own.eos_token_id not in turn


@pytest.mark.models
def test_smollm2_knows_no_tools_and_takes_any_role(smollm2_tokenizer: Any) -> None:
    abilities = ChatRenderer(smollm2_tokenizer).abilities
    assert not abilities.tools
    assert not abilities.tool_calls
    assert abilities.tool_role
    assert abilities.system_role


@pytest.mark.models
def test_real_tool_loops_grow_by_turns_as_they_do_when_sent_whole(smollm2_tokenizer: Any) -> None:
    data = Path(os.environ.get("RADIXLOOP_DATA", Path(__file__).parents[3] / "shared" / "data"))
    source = data / "tau-airline" / "sessions.jsonl.gz"
    if not source.exists():
        pytest.skip(f"no recorded sessions at {source}")
    own = ChatRenderer(smollm2_tokenizer)
    end = smollm2_tokenizer.eos_token_id
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        sessions = [json.loads(line)["messages"] for line, _ in zip(lines, range(4), strict=False)]
    turns = 0
    for messages in sessions:
        replies = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        for reply, following in itertools.pairwise(replies[:7]):
            new = messages[reply + 1 : following]
            if not new:
                continue
            prompt = own.encode(messages[:reply]).tolist()
            spoken = own.encode(messages[: reply + 1], add_generation_prompt=False).tolist()
            ids = [*prompt, *spoken[len(prompt) : spoken.index(end, len(prompt)) + 1]]
            ids += own.encode_turn(messages[: reply + 1], new, None, None, end).tolist()
            assert ids == own.encode(messages[:following]).tolist()
            turns += 1
    assert turns > 10
