"""The store's figures for those who cannot wait for the engine to end its step."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait

from radix import StoreStats
from runtime.engine import Engine


class LastKnownStats:
    """The store's figures, fresh where the engine answers soon, else the last ones. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pending: Future[tuple[StoreStats, float]] | None = None
        self._stats: StoreStats | None = None
        self._read_at = 0.0

    def read(self, wait_s: float, fresh_s: float = 0.0) -> tuple[StoreStats | None, float]:
        """The figures and their age in seconds; None before the engine answered for the first time.

        Args:
            wait_s: for the engine's answer, in seconds.
            fresh_s: figures that are no older than so many seconds will do.
        """
        with self._lock:
            # What an earlier reader asked for and did not wait for is old by now, but better than nothing.
            self._collect(0)
            if self._pending is None and (self._stats is None or time.monotonic() - self._read_at > fresh_s):
                self._pending = self._engine.call(lambda store: (store.stats(), time.monotonic()))
            self._collect(wait_s)
            return self._stats, time.monotonic() - self._read_at

    def _collect(self, timeout_s: float) -> None:
        if self._pending is None or self._pending not in wait([self._pending], timeout=timeout_s).done:
            return
        # An engine that has stopped answers with an error; its last figures stay.
        if self._pending.exception() is None:
            self._stats, self._read_at = self._pending.result()
        self._pending = None
