"""Turns appended to a session, where the template would have put them."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import TemplateRefused
from runtime.prompting.chat import ChatRenderer
from tests.runtime.chat_templates import (
    ALTERNATING,
    ANSWER,
    BY_ID,
    CALL,
    FORGETFUL,
    LAST_ONLY,
    NATIVE,
    PAIRED,
    PARTS,
    PLAIN,
    RESULT,
    SYSTEM,
    SYSTEM_FIRST,
    TEXT_ARGUMENTS,
    TOOL,
    USER,
    prompt_ids,
    renderer,
    spaced_tokenizer,
    tokenizer,
)


@pytest.mark.parametrize("template", [PLAIN, NATIVE, TEXT_ARGUMENTS, FORGETFUL, PARTS])
@pytest.mark.parametrize("new", [[USER], [RESULT], [RESULT, RESULT, USER]], ids=["user", "tool", "mixed"])
def test_a_turn_is_what_the_whole_chat_has_behind_the_reply(template: str, new: list[dict[str, Any]]) -> None:
    own = tokenizer(template)
    history = [SYSTEM, USER]
    whole = prompt_ids(own, [*history, ANSWER, *new], [TOOL])
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
            prompt = prompt_ids(smollm2_tokenizer, messages[:reply])
            spoken = prompt_ids(smollm2_tokenizer, messages[: reply + 1])
            ids = [*prompt, *spoken[len(prompt) : spoken.index(end, len(prompt)) + 1]]
            ids += own.encode_turn(messages[: reply + 1], new, None, None, end).tolist()
            assert ids == prompt_ids(smollm2_tokenizer, messages[:following])
            turns += 1
    assert turns > 10
