"""Tool calls in a chat's stream, and the reply that a session remembers."""

from __future__ import annotations

import json

import numpy as np

from runtime.events import DeltaEvent, FinishReason
from runtime.prompting.chat_messages import check_messages
from runtime.services.replies import ReplyWriter
from runtime.tool_calls import HeldCalls

CALL = '<tool_call>{"name": "read", "arguments": {"path": "é.txt"}}</tool_call>'


def writer(*, chat: bool) -> ReplyWriter:
    reader = (lambda: HeldCalls(bare=False)) if chat else None
    return ReplyWriter("r", np.array([1], np.int32), return_prompt_ids=False, reader=reader)


def test_the_last_delta_of_a_chat_choice_carries_its_tool_calls() -> None:
    replies = writer(chat=True)
    first = replies.delta(DeltaEvent(1, "Let me look. " + CALL[:20], (1, 2)))
    other = replies.delta(DeltaEvent(0, "No call.", (9,), finish_reason=FinishReason.EOS))
    last = replies.delta(DeltaEvent(1, CALL[20:], (3,), finish_reason=FinishReason.EOS))
    assert not first.delta.tool_calls
    assert not other.delta.tool_calls
    (call,) = last.delta.tool_calls
    assert call.name == "read"
    assert json.loads(call.arguments) == {"path": "é.txt"}

    message = replies.assistant_message(1)
    assert message["role"] == "assistant"
    assert message["content"] == "Let me look. " + CALL
    assert message["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "é.txt"}'}
    assert replies.assistant_message(0) == {"role": "assistant", "content": "No call."}


def test_a_reply_with_half_a_surrogate_pair_can_be_history() -> None:
    replies = writer(chat=True)
    replies.delta(DeltaEvent(0, CALL.replace("é", r"\ud800"), (1,), finish_reason=FinishReason.EOS))
    [message], _ = check_messages([replies.assistant_message(0)])
    assert message["tool_calls"][0]["function"]["arguments"] == {"path": "\N{REPLACEMENT CHARACTER}.txt"}


def test_what_is_no_chat_has_no_tool_calls() -> None:
    last = writer(chat=False).delta(DeltaEvent(0, CALL, (3,), finish_reason=FinishReason.EOS))
    assert not last.delta.tool_calls
