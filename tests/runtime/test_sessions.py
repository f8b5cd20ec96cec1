"""The session table: append-only tokens, one turn at a time, bounds."""

from __future__ import annotations

import numpy as np
import pytest

from radix import Namespace
from runtime.errors import SessionNotFound
from runtime.retention.sessions import SessionBusy, SessionExists, SessionLimit, SessionTable
from tests.timing import ManualClock

SPACE = Namespace("f", "tenant", None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(clock: ManualClock) -> SessionTable:
    return SessionTable(limit=3, idle_s=10.0, clock=clock)


def test_tokens_grow_and_old_views_stay(table: SessionTable) -> None:
    session = table.open(SPACE)
    session.append(range(200))
    before = session.tokens
    session.append(np.arange(200, 1000, dtype=np.int32))
    assert before.tolist() == list(range(200))
    assert session.tokens.tolist() == list(range(1000))
    assert session.tokens.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        session.tokens[0] = 1


def test_a_fork_goes_on_by_itself(table: SessionTable) -> None:
    parent = table.open(SPACE, "p")
    parent.append([1, 2, 3])
    parent.kind = "chat"
    parent.add_chat_turn([{"role": "user", "content": "hi"}], {"role": "assistant", "content": "yes"})
    child = table.fork("p", "c")
    child.append([4])
    parent.append([5])
    child.add_chat_turn([{"role": "user", "content": "and?"}], {"role": "assistant", "content": "no"})
    assert (parent.tokens.tolist(), child.tokens.tolist()) == ([1, 2, 3, 5], [1, 2, 3, 4])
    assert (child.kind, child.namespace) == ("chat", SPACE)
    assert [message["content"] for message in parent.messages] == ["hi", "yes"]
    assert [message["content"] for message in child.messages] == ["hi", "yes", "and?", "no"]


def test_one_turn_at_a_time(table: SessionTable) -> None:
    table.open(SPACE, "s")
    with table.turn("s"):
        with pytest.raises(SessionBusy, match="'s'"), table.turn("s"):
            pass
        assert len(table.fork("s", "t")) == 0
    with table.turn("s"):
        pass


def test_a_failed_turn_frees_the_session(table: SessionTable) -> None:
    table.open(SPACE, "s")
    with pytest.raises(RuntimeError), table.turn("s"):
        raise RuntimeError
    with table.turn("s") as session:
        assert len(session) == 0


def test_close_is_idempotent_and_the_running_turn_goes_on(table: SessionTable) -> None:
    table.open(SPACE, "s")
    with table.turn("s") as session:
        assert table.close("s") is session
        session.append([1])
    assert table.close("s") is None
    with pytest.raises(SessionNotFound, match="'s'"), table.turn("s"):
        pass


def test_ids_are_unique_and_the_table_is_bounded(table: SessionTable) -> None:
    table.open(SPACE, "s")
    with pytest.raises(SessionExists, match="'s'"):
        table.open(SPACE, "s")
    with pytest.raises(SessionExists, match="'s'"):
        table.fork("s", "s")
    names = {table.open(SPACE).id, table.open(SPACE).id}
    assert len(names) == 2
    with pytest.raises(SessionLimit, match="3 sessions"):
        table.open(SPACE)
    with pytest.raises(SessionLimit, match="3 sessions"):
        table.fork("s")


def test_idle_sessions_are_forgotten_and_used_ones_are_not(table: SessionTable, clock: ManualClock) -> None:
    table.open(SPACE, "idle")
    table.open(SPACE, "used")
    clock.now = 9.0
    with table.turn("used"):
        pass
    clock.now = 10.5
    table.expire()
    assert len(table) == 1
    with pytest.raises(SessionNotFound):
        table.fork("idle")
    table.fork("used", "child")


def test_a_long_turn_is_not_idle(table: SessionTable, clock: ManualClock) -> None:
    table.open(SPACE, "long")
    table.open(SPACE, "idle")
    with table.turn("long"):
        clock.now = 100.0
        table.expire()
        assert len(table) == 1
        assert [session.id for session in table] == ["long"]
    assert len(table) == 1
    clock.now = 111.0
    table.expire()
    assert len(table) == 0


def test_a_family_is_those_that_are_open_of_all_that_were_forked_from_one(table: SessionTable) -> None:
    first, child = table.open(SPACE, "first"), table.fork("first", "child")
    stranger = table.open(SPACE, "stranger")
    assert (table.relatives(first), table.relatives(child), table.relatives(stranger)) == ([child], [first], [])
    table.close("first")
    assert (table.relatives(first), table.relatives(child)) == ([child], [])
    grandchild = table.fork("child", "first")
    assert (table.relatives(first), table.relatives(child)) == ([child, grandchild], [grandchild])
    table.close("child")
    table.close("first")
    assert table.relatives(first) == []
