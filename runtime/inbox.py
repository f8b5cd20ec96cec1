"""How other threads reach the engine's thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress


class Inbox:
    """Callables that any thread posts, and the engine's thread runs in order between two steps."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._next: Callable[[], None] | None = None

    def __len__(self) -> int:
        """How many wait to be run."""
        return self._actions.qsize()

    def post(self, action: Callable[[], None]) -> bool:
        """Have `action` run; False when nothing will be run any more."""
        with self._lock:
            if not self._closed:
                self._actions.put(action)
            return not self._closed

    def wake(self) -> None:
        """End a `wait`."""
        self.post(_nothing)

    # On the engine's thread

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until there is something to read, or until so many seconds have gone by."""
        with suppress(queue.Empty):
            self._next = self._actions.get(timeout=timeout_s)

    def read(self) -> None:
        """Run everything that was posted."""
        action, self._next = self._next, None
        try:
            while True:
                if action is not None:
                    action()
                action = self._actions.get_nowait()
        except queue.Empty:
            return

    def close(self) -> None:
        """Take no more, and run what was posted before."""
        with self._lock:
            self._closed = True
        self.read()


def _nothing() -> None:
    """Wakes whoever waits."""
