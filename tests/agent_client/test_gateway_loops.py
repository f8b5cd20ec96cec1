"""Whose call it is: the names that go to the runtime, by header and by body."""

from __future__ import annotations

import httpx
import pytest

from agent_client.gateway.conversations import Loop, Nvext, loop_of

from .gateway_harness import ok
from .toy_runtime import ToyRuntime

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def sent(http: httpx.Client, toy: ToyRuntime, headers: dict[str, str], path: str = CHAT, **body: object) -> object:
    ok(http.post(path, json=HELLO | body, headers=headers))
    return toy.seen[-1].request


def test_agents_of_one_session_are_conversations_of_their_own(http: httpx.Client, scripted: ToyRuntime) -> None:
    session = {"x-claude-code-session-id": "s"}
    names = {
        sent(http, scripted, headers, MESSAGES).conversation
        for headers in (
            session,
            session | {"x-claude-code-agent-id": "a"},
            session | {"x-claude-code-agent-id": "b"},
            session | {"x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"},
            {"x-parent-session-id": "s"},
            {"x-session-id": "t", "x-parent-session-id": "s"},
            {"x-dynamo-session-id": "t", "x-dynamo-parent-session-id": "u"},
        )
    }
    assert len(names) == 7
    assert all(names)


@pytest.mark.parametrize("final", ["true", "1", "True"])
def test_the_final_call_ends_its_conversation(http: httpx.Client, scripted: ToyRuntime, final: str) -> None:
    session = {"x-dynamo-session-id": "s"}
    assert not sent(http, scripted, session).conversation_ends
    last = sent(http, scripted, session | {"X-Dynamo-Session-Final": final})
    assert last.conversation_ends
    assert not sent(http, scripted, session | {"X-Dynamo-Session-Final": "false"}).conversation_ends
    # Nobody's last call ends nothing, and is no error.
    assert not sent(http, scripted, {"X-Dynamo-Session-Final": final}).HasField("conversation_ends")
    closing = {"session_control": {"session_id": "s", "action": "close"}}
    told = sent(http, scripted, {}, nvext=closing)
    assert told.conversation_ends
    assert told.conversation == last.conversation


def test_dynamos_priority_is_brought_within_bounds(http: httpx.Client, scripted: ToyRuntime) -> None:
    for given, taken in ((7, 7), (1000, 100), (-3, 0)):
        assert sent(http, scripted, {}, nvext={"agent_hints": {"priority": given, "osl": 10}}).priority == taken
    assert sent(http, scripted, {}, nvext={"agent_hints": {"priority": 7}}, priority=3).priority == 3


def test_headers_come_before_the_body() -> None:
    nvext = Nvext.model_validate({"session_control": {"session_id": "body"}})
    assert loop_of({"session-id": "header"}, "key", nvext).session == "header"
    assert loop_of({}, "key", nvext).session == "body"
    assert loop_of({"x-session-id": ""}, "", None) == Loop(branch=(None, None, None))


def test_a_key_names_no_place_alone() -> None:
    one, other = (Loop(key="app").place(None, text) for text in ("a" * 300, "b" * 300))
    assert one != other
    assert Loop(key="app").place("tenant", "a") != Loop(key="app").place(None, "a")
    assert Loop(session="s").place(None, "a") == Loop(session="s").place(None, "b")
