"""`radix-runtime serve` that checks its own books when it is asked to, and a handle on such a process.

A line on standard input is answered by a line of JSON on standard output; the log goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 120.0
_COMMAND = (sys.executable, "-m", "tests.e2e.tiers.checked_server")


class CheckedServer:
    """A process that serves, its log, and its books."""

    def __init__(self, folder: Path, model: str, *flags: str) -> None:
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        self.log: list[str] = []
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*_COMMAND, "serve", "--model", model, "--port", "0", "--metrics-port", "0", "--ready-file", ready, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Not a file: a limit on the size of files stands for a full disk, and is not to stop the log.
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() - self.started > WAIT_S:
                self.process.kill()
                raise AssertionError("the server did not start:\n" + "".join(self.log))
            time.sleep(0.02)
        told = json.loads(ready.read_text())
        self.start_s = time.monotonic() - self.started
        self.target: str = told["target"]
        self.metrics_url: str = told["metrics_url"]

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr

    def books(self) -> dict[str, Any]:
        """Everything that is held, as counted by the engine's thread; `wrong` names what does not add up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("check\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def idle_books(self) -> dict[str, Any]:
        """The books once nothing runs and nothing is copied; AssertionError where something is held then."""
        deadline = time.monotonic() + WAIT_S
        books = self.books()
        while books["busy"] or books["copying"]:
            assert time.monotonic() < deadline, f"the runtime does not come to rest: {books}"
            time.sleep(0.02)
            books = self.books()
        device = books["device"]
        assert books["wrong"] is None, books["wrong"]
        assert device["free"] + device["cached"] == device["total"], device
        assert device["open"] == device["active"] == device["leaving"] == device["loans"] == 0, device
        return books

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the process and its log, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(WAIT_S)
        self._reader.join()
        return status


@contextmanager
def checked_server(folder: Path, model: str, *flags: str) -> Iterator[CheckedServer]:
    """A server on free ports; killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    server = CheckedServer(folder, model, *flags)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def _serve() -> None:
    import runtime.server
    from radix import PrefixStore
    from radix.cold.invariants import check_cold
    from runtime.__main__ import main
    from runtime.engine import Engine

    engines: list[Engine] = []

    class Watched(Engine):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            engines.append(self)

    def books(store: PrefixStore) -> dict[str, Any]:
        stats, tiers = store.stats(), engines[0].tiers
        told: dict[str, Any] = {
            "wrong": None,
            "busy": engines[0].counters.running + engines[0].counters.waiting,
            "copying": tiers is not None and tiers.unfinished,
            "device": {
                "total": stats.total_blocks,
                "free": stats.free_blocks,
                "cached": stats.cached_blocks,
                "active": stats.active_blocks,
                "leaving": stats.leaving_blocks,
                "loans": len(store._pool.loans),
                "open": stats.open_sequences,
            },
        }
        try:
            store.check()
            if tiers is not None:
                told["tiers"] = {t.name: {"total": t.capacity, "used": t.used} for t in tiers.index.tiers}
                # What was forgotten while it was copied is not in the index any more, and still has its slot.
                if not tiers.waiting:
                    check_cold(tiers.index)
        except AssertionError as error:
            told["wrong"] = str(error)
        return told

    def answer() -> None:
        for _ in sys.stdin:
            print(json.dumps(engines[0].call(books).result()), flush=True)
        # Whoever asked is gone.
        os.kill(os.getpid(), signal.SIGTERM)

    runtime.server.Engine = Watched  # type: ignore[misc]
    threading.Thread(target=answer, daemon=True).start()
    main()


if __name__ == "__main__":
    _serve()
