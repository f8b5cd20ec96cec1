"""Which branches the store is told that nobody will come back to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from radix import Namespace, PrefixStore
from runtime.errors import InvalidRequest
from runtime.retention.branches import Branches
from runtime.retention.conversations import Conversations
from runtime.retention.sessions import SessionTable, TurnEnd

SPACE = Namespace("f")
TRUNK = list(range(8))


class Bench:
    """A store under the agent policy, a session table, and the branches between them."""

    def __init__(self) -> None:
        self.store = PrefixStore(64, 4, "agent")
        self.sessions = SessionTable(limit=100, idle_s=10.0)
        self.branches = Branches(self.call, self.sessions, Conversations())
        self.sessions.on_end.append(self.branches.session_ended)

    def call(self, fn: Callable[[PrefixStore], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(self.store))
        return future

    def cache(self, tokens: list[int]) -> None:
        seq = self.store.open(tokens, SPACE)
        self.store.reserve(seq, len(tokens) - seq.length)
        self.store.commit(seq, tokens[seq.length :])
        self.store.close(seq)

    def session(self, name: str, tokens: list[int]) -> None:
        self.cache(tokens)
        self.sessions.open(SPACE, name).append(tokens)

    def first_to_go(self, tokens: int) -> None:
        """Evict that many tokens' blocks."""
        self.store.evict(tokens // 4)
        self.store.check()

    def cached(self, tokens: list[int]) -> int:
        return self.store.match(tokens, SPACE)


A = [*TRUNK, *range(100, 108)]
B = [*TRUNK, *range(200, 208)]


def test_a_closed_session_goes_before_an_older_open_one() -> None:
    bench = Bench()
    bench.session("open", A)
    bench.session("closed", B)
    bench.sessions.close("closed")
    bench.first_to_go(8)
    assert (bench.cached(A), bench.cached(B)) == (16, 8)


def test_what_a_fork_still_needs_does_not_go_first() -> None:
    bench = Bench()
    bench.session("other", A)
    bench.session("parent", B)
    bench.sessions.fork("parent", "child")
    bench.sessions.close("parent")
    bench.first_to_go(8)
    assert (bench.cached(A), bench.cached(B)) == (8, 16)
    bench.cache(A)
    bench.sessions.close("child")
    bench.first_to_go(8)
    assert (bench.cached(A), bench.cached(B)) == (16, 8)


def test_a_fork_that_went_on_keeps_what_it_grew_from() -> None:
    bench = Bench()
    bench.session("parent", B)
    child = bench.sessions.fork("parent", "child")
    longer = [*B, *range(300, 304)]
    child.append(longer[16:])
    bench.cache(longer)
    bench.session("other", A)
    bench.sessions.close("parent")
    bench.first_to_go(4)
    # Nothing is marked, so the longest unused goes: the end of the child's branch.
    assert (bench.cached(A), bench.cached(longer)) == (16, 16)


def test_what_a_session_cuts_off_goes_first() -> None:
    bench = Bench()
    bench.session("other", A)
    bench.session("cut", B)
    with bench.sessions.turn("cut") as session:
        before = session.tokens
        session.cut(session.place_to_cut(tokens=12))
        assert bench.branches.session_cut(session, before).result() == 4
        assert session.tokens.tolist() == B[:12]
        assert before.tolist() == B
    bench.first_to_go(4)
    assert (bench.cached(A), bench.cached(B)) == (16, 12)


def test_an_idle_session_that_is_forgotten_is_let_go_as_a_closed_one() -> None:
    now = [0.0]
    bench = Bench()
    bench.sessions._clock = lambda: now[0]
    bench.session("other", A)
    bench.session("idle", B)
    now[0] = 5.0
    with bench.sessions.turn("other"):
        pass
    now[0] = 12.0
    bench.sessions.expire()
    bench.first_to_go(8)
    assert (bench.cached(A), bench.cached(B)) == (16, 8)


def test_a_rewritten_conversation_leaves_its_old_branch() -> None:
    bench = Bench()
    bench.cache(A)
    bench.cache(B)
    bench.branches.conversation_said("c", np.array(B, np.int32))
    bench.branches.conversation_arrives("c", SPACE, np.array([*B, 1, 2], np.int32))
    bench.first_to_go(8)
    assert (bench.cached(A), bench.cached(B)) == (8, 16), "an extension is no rewrite"
    bench.cache(A)
    bench.branches.conversation_arrives("c", SPACE, np.array([*B[:12], 1, 2], np.int32))
    bench.branches.conversation_arrives("unknown", SPACE, np.array(A, np.int32))
    bench.first_to_go(4)
    assert (bench.cached(A), bench.cached(B)) == (16, 12)


def test_a_conversation_that_ended_goes_before_an_older_one_that_did_not() -> None:
    bench = Bench()
    bench.cache(A)
    bench.cache(B)
    bench.branches.conversation_said("c", np.array(B[:12], np.int32))
    bench.branches.conversation_ended("c", SPACE, np.array(B, np.int32))
    bench.first_to_go(8)
    assert (bench.cached(A), bench.cached(B)) == (16, 8)
    assert len(bench.branches._conversations) == 0


def test_conversations_are_bounded_in_number_and_tokens() -> None:
    kept = Conversations(max_conversations=3, max_tokens=100)
    for name in range(5):
        kept.keep(name, np.zeros(20, np.int32))
    assert [kept.get(name) is not None for name in range(5)] == [False, False, True, True, True]
    kept.keep(2, np.zeros(70, np.int32))
    assert kept.get(3) is None
    assert kept.get(2) is not None
    kept.keep("long", np.zeros(1000, np.int32))
    assert len(kept) == 1


def test_a_chat_is_cut_where_a_turn_ends() -> None:
    table = SessionTable(limit=3, idle_s=10.0)
    chat = table.open(SPACE, "chat")
    chat.kind = "chat"
    for turn in range(3):
        chat.append([turn] * 10)
        chat.add_chat_turn([{"role": "user", "content": "?"}], {"role": "assistant", "content": "!"})
    child = table.fork("chat", "child")
    for bad in ({"messages": 3}, {"messages": -1}, {"messages": 8}, {"tokens": 15}):
        with pytest.raises(InvalidRequest, match="where a turn ends: 0, "):
            chat.place_to_cut(**bad)
    assert chat.place_to_cut(messages=4) == chat.place_to_cut(tokens=20) == TurnEnd(4, 20)
    chat.cut(TurnEnd(4, 20))
    assert (len(chat), len(chat.messages), len(child), len(child.messages)) == (20, 4, 30, 6)
    chat.append([9] * 5)
    assert chat.tokens[20:].tolist() == [9] * 5
    assert child.tokens[20:].tolist() == [2] * 10
    chat.cut(chat.place_to_cut(messages=0))
    assert (len(chat), chat.kind, chat.messages) == (0, None, [])


def test_other_sessions_are_cut_anywhere_within() -> None:
    session = SessionTable(limit=3, idle_s=10.0).open(SPACE, "s")
    session.kind = "tokens"
    session.append(range(10))
    for bad in (-1, 11):
        with pytest.raises(InvalidRequest, match="from 0 to 10"):
            session.place_to_cut(tokens=bad)
    with pytest.raises(InvalidRequest, match="give tokens"):
        session.place_to_cut(messages=0)
    session.cut(session.place_to_cut(tokens=3))
    assert session.tokens.tolist() == [0, 1, 2]
