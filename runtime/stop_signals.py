"""SIGTERM and Ctrl-C: the first asks for an orderly end, the second ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


class StopSignals:
    """Waits for the first signal; exits at once, with status 128 + signal, on the second or before `may_drain` is set.

    Args:
        before_exit: called before an immediate exit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, before_exit: Callable[[], None] | None) -> None:
        self.may_drain = False
        self._before_exit = before_exit
        self._asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)

    async def wait(self) -> None:
        """Return when a signal asked for the end."""
        await self._asked.wait()

    def _receive(self, number: int) -> None:
        if self.may_drain and not self._asked.is_set():
            self._asked.set()
            return
        if self._before_exit is not None:
            self._before_exit()
        # Not sys.exit: threads that compute or load a model would be waited for.
        os._exit(128 + number)
