"""Wakes the readers of many streams with one call into their event loop."""

from __future__ import annotations

import asyncio
import threading


class WakeUps:
    """What is to be woken up at the end of a step.

    A call into a loop from another thread writes to a pipe and hands the interpreter over: once for each stream, the
    engine would wait as many times in the middle of its step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._due: list[asyncio.Event] = []

    def add(self, event: asyncio.Event) -> None:
        """Have `event` set at the next flush; any thread."""
        with self._lock:
            self._due.append(event)

    def flush(self) -> None:
        """Have the loop set what was added since the last flush; any thread, without waiting for it."""
        with self._lock:
            due, self._due = self._due, []
        if not due:
            return
        try:
            self._loop.call_soon_threadsafe(_set_all, due)
        except RuntimeError:
            # The loop is closed: the process is going down and nobody reads these streams any more.
            return


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
