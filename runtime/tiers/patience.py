"""Work on a file that may never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """The work got no further for as long as it may take; its thread is left alone."""


def patiently(work: Callable[[Callable[[], None]], T], limit_s: float) -> T:
    """Do the work on a thread of its own, and return what it returns or raise what it raises.

    Args:
        work: calls what it is given whenever it got further.
        limit_s: seconds without that, up to twice as many.

    Raises:
        NoAnswer.
    """
    result: Future[T] = Future()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    def run() -> None:
        try:
            result.set_result(work(step))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="kv-open", daemon=True).start()
    seen = -1
    while True:
        try:
            return result.result(limit_s)
        except NotDone:
            if result.done():
                raise
            if steps == seen:
                raise NoAnswer(f"it did not answer for {limit_s:g} s") from None
            seen = steps
