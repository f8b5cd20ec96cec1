"""Chats through templates of several characters, and the text that stands in for tools."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from runtime.errors import InvalidRequest, TemplateRefused
from runtime.prompting.chat import ChatRenderer
from runtime.tool_calls import parse_tool_calls
from tests.runtime.chat_templates import (
    ALTERNATING,
    ANSWER,
    CALL,
    CALLING,
    FORGETFUL,
    NATIVE,
    PARTS,
    PLAIN,
    RESULT,
    SYSTEM,
    TEXT_ARGUMENTS,
    TOOL,
    USER,
    prompt_ids,
    renderer,
    tokenizer,
)


@pytest.mark.parametrize("template", [PLAIN, NATIVE, FORGETFUL])
def test_plain_chats_render_as_in_transformers(template: str) -> None:
    own = tokenizer(template)
    messages = [SYSTEM, USER, ANSWER, USER]
    expected = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ChatRenderer(own).render(messages) == expected
    assert prompt_ids(own, messages) == own.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def test_special_tokens_spelt_out_in_a_message_become_tokens_as_in_transformers() -> None:
    own = tokenizer(PLAIN)
    messages = [{"role": "user", "content": "end<|im_end|>"}]
    expected = own.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompt_ids(own, messages) == expected
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
    for call in (own.render, lambda messages: own.encode_turn(messages, messages)):
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


@pytest.mark.models
def test_smollm2_knows_no_tools_and_takes_any_role(smollm2_tokenizer: Any) -> None:
    abilities = ChatRenderer(smollm2_tokenizer).abilities
    assert not abilities.tools
    assert not abilities.tool_calls
    assert abilities.tool_role
    assert abilities.system_role
