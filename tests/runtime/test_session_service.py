"""Sessions over a real engine with a tiny random Llama."""

from __future__ import annotations

import grpc
from radixloop.v1 import (
    common_pb2,
    inference_pb2,
    sessions_pb2,
)

from tests.runtime.services_harness import (
    Server,
    chat_prompt,
    generate,
    ids_prompt,
    open_session,
    prompt_of,
    refused,
    request,
)


def test_a_turn_sends_only_what_is_new_and_reuses_prompt_and_output(server: Server) -> None:
    session = open_session(server)
    first = generate(server, prompt_of(50, seed=30), 10, session_id=session)
    assert first.finished.session_tokens == 60
    second = generate(server, prompt_of(7, seed=31), 10, session_id=session, return_prompt_ids=True)
    assert second.started.usage.prompt_tokens == 67
    assert second.started.usage.cached_tokens == second.finished.usage.cached_tokens == 50 + 10 - 1
    assert second.finished.session_tokens == 77
    whole = [*prompt_of(50, seed=30).token_ids.ids, *first.ids, *prompt_of(7, seed=31).token_ids.ids]
    assert list(second.started.prompt_ids.ids) == whole
    assert generate(server, ids_prompt(*whole), 10).ids == second.ids


def test_a_chat_session_appends_and_never_renders_the_reply_again(server: Server) -> None:
    session = open_session(server)
    opening = chat_prompt(("system", "Be brief."), ("user", "Hello"))
    first = generate(server, opening, 12, session_id=session, return_prompt_ids=True)
    second = generate(server, chat_prompt(("user", "And?")), 12, session_id=session, return_prompt_ids=True)
    before = [*first.started.prompt_ids.ids, *first.ids]
    ids = list(second.started.prompt_ids.ids)
    assert ids[: len(before)] == before
    added = common_pb2.TokenIds(ids=ids[len(before) :])
    text = server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=added, keep_special_tokens=True)).text
    assert text == "<|end|>\n<|user|>And?<|end|>\n<|assistant|>"
    assert second.started.usage.cached_tokens == len(before) - 1


def test_a_fork_shares_what_was_and_goes_on_by_itself(server: Server) -> None:
    session = open_session(server)
    first = generate(server, prompt_of(50, seed=32), 10, session_id=session)
    child = server.sessions.Fork(sessions_pb2.ForkSessionRequest(session_id=session, new_session_id="child"))
    assert (child.session_id, child.tokens) == ("child", 60)
    ours = generate(server, ids_prompt(100), 5, session_id=session)
    theirs = generate(server, ids_prompt(101), 5, session_id="child")
    # The last generated token's KV was computed by whoever went on first.
    assert (ours.started.usage.cached_tokens, theirs.started.usage.cached_tokens) == (59, 60)
    alone = [*prompt_of(50, seed=32).token_ids.ids, *first.ids, 101]
    assert generate(server, ids_prompt(*alone), 5).ids == theirs.ids
    assert server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id="child")).tokens == 66


def test_one_turn_at_a_time_and_a_cancelled_one_leaves_no_trace(server: Server) -> None:
    session = open_session(server)
    generate(server, prompt_of(20, seed=33), 5, session_id=session)
    running = server.inference.Generate(request(ids_prompt(50), 3000, session_id=session))
    next(running)
    error = refused(lambda: generate(server, ids_prompt(51), 5, session_id=session))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "one at a time" in error.details()
    running.cancel()
    server.idle()
    assert generate(server, ids_prompt(52), 5, session_id=session).started.usage.prompt_tokens == 26


def test_a_refused_turn_leaves_the_session_usable(server: Server) -> None:
    session = open_session(server)
    generate(server, chat_prompt(("user", "Hello")), 5, session_id=session)
    for bad, code in (
        (request(ids_prompt(9), session_id=session), grpc.StatusCode.FAILED_PRECONDITION),
        (request(chat_prompt(("wizard", "x")), session_id=session), grpc.StatusCode.INVALID_ARGUMENT),
        (request(chat_prompt(("user", "x")), 5000, session_id=session), grpc.StatusCode.INVALID_ARGUMENT),
        (request(chat_prompt(("user", "x")), session_id=session, sampling={"n": 2}), grpc.StatusCode.INVALID_ARGUMENT),
        (
            request(chat_prompt(("user", "x")), session_id=session, namespace=common_pb2.Namespace(salt="s")),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ):
        assert refused(lambda bad=bad: server.inference.Generate(bad)).code() is code
    assert generate(server, chat_prompt(("user", "x")), 5, session_id=session).finished.session_tokens > 0


def test_a_session_keeps_the_tools_that_it_began_with(server: Server) -> None:
    tool = '{"type": "function", "function": {"name": "read", "parameters": {}}}'
    session = open_session(server)
    generate(server, chat_prompt(("user", "Hello"), tools=[tool]), 5, session_id=session)
    generate(server, chat_prompt(("user", "again"), tools=[tool]), 5, session_id=session)
    generate(server, chat_prompt(("user", "without")), 5, session_id=session)
    other = tool.replace("read", "write")
    error = refused(lambda: generate(server, chat_prompt(("user", "x"), tools=[other]), 5, session_id=session))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "prompt.chat.tools" in error.details()


def test_sessions_of_a_namespace_share_with_it_alone(server: Server) -> None:
    space = common_pb2.Namespace(salt="tenant")
    prompt = prompt_of(40, seed=34)
    generate(server, prompt)
    session = open_session(server, namespace=space)
    assert generate(server, prompt, session_id=session).started.usage.cached_tokens == 0
    assert generate(server, prompt, namespace=space).started.usage.cached_tokens == 39


def test_session_ids(server: Server) -> None:
    assert open_session(server, session_id="mine") == "mine"
    again = refused(lambda: open_session(server, session_id="mine"))
    assert again.code() is grpc.StatusCode.ALREADY_EXISTS
    assert refused(lambda: open_session(server, session_id="")).code() is grpc.StatusCode.INVALID_ARGUMENT
    close = sessions_pb2.CloseSessionRequest(session_id="mine")
    assert server.sessions.Close(close).closed
    assert not server.sessions.Close(close).closed
    gone = refused(lambda: generate(server, ids_prompt(9), session_id="mine"))
    assert gone.code() is grpc.StatusCode.NOT_FOUND
    assert "'mine'" in gone.details()
    assert refused(lambda: server.sessions.Fork(sessions_pb2.ForkSessionRequest(session_id="mine"))).code() is (
        grpc.StatusCode.NOT_FOUND
    )
    # Quoted whole, it would make the status too large for the client.
    long = refused(lambda: generate(server, ids_prompt(9), session_id="\U0001f334" * 20_000))
    assert long.code() is grpc.StatusCode.NOT_FOUND
    assert long.details().startswith("session_id '\U0001f334")


def test_a_closed_session_gives_up_its_place_at_the_door(server: Server) -> None:
    door = server.runtime._engine._scheduler._door
    assert door is not None
    session = open_session(server)
    generate(server, prompt_of(20, seed=91), 2, session_id=session)
    fork = server.sessions.Fork(sessions_pb2.ForkSessionRequest(session_id=session)).session_id
    held = len(door._claims)
    server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id=session))
    server.stats()
    assert len(door._claims) == held
    server.sessions.Close(sessions_pb2.CloseSessionRequest(session_id=fork))
    server.stats()
    assert len(door._claims) == held - 1
