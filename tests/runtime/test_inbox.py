"""The way into the engine's thread: in order, and nothing is lost at the end."""

from __future__ import annotations

import threading

from runtime.inbox import Inbox


def test_what_was_posted_runs_in_order_also_what_the_wait_took_out() -> None:
    inbox, ran = Inbox(), []
    inbox.post(lambda: ran.append(1))
    inbox.post(lambda: ran.append(2))
    inbox.wait()
    inbox.read()
    assert ran == [1, 2]
    inbox.read()
    assert ran == [1, 2]


def test_a_closed_inbox_ran_everything_and_takes_nothing() -> None:
    inbox, ran = Inbox(), []
    assert inbox.post(lambda: ran.append(1))
    inbox.close()
    assert ran == [1]
    assert not inbox.post(lambda: ran.append(2))
    assert len(inbox) == 0


def test_waking_ends_a_wait() -> None:
    inbox = Inbox()
    waiter = threading.Thread(target=inbox.wait)
    waiter.start()
    inbox.wake()
    waiter.join(60)
    assert not waiter.is_alive()
    inbox.read()
