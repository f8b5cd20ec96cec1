"""The runtime's side of the process that compiles grammars."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import runtime
from runtime.errors import ShuttingDown
from runtime.grammar.frames import DONE, READY, REFUSED, read_frame, write_frame
from runtime.grammar.spec import CompilerBusy, GrammarRefused, GrammarSpec

# Of address space, beyond what the libraries take.
MEMORY_BYTES = 1 << 30
# To start it, which loads torch, on a busy machine.
START_S = 60.0
# A process ends itself after so much of the processor's time. Where others hold the processor it is ended after so many
# times as much by the clock.
PATIENCE = 6
DYING_S = 1.0
# How a process ends that somebody else ended: by hand, or for want of memory elsewhere.
_FROM_OUTSIDE = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})

_STOPPED = "the runtime has stopped"


class CompileProcess:
    """One such process, started at the first grammar and again after one that ended it. For one thread at a time."""

    def __init__(self, vocabulary: bytes, vocab_size: int, seconds: float) -> None:
        """`seconds` is the time that a grammar may take."""
        self._vocabulary = vocabulary
        self._head = json.dumps({"memory_bytes": MEMORY_BYTES, "vocab_size": vocab_size}).encode()
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False
        self.starts = 0

    def compile(self, spec: GrammarSpec) -> bytes:
        """A compiled grammar as the library dumps it.

        Raises GrammarRefused, also where the bounds are exceeded; CompilerBusy where its failure says nothing of it;
        ShuttingDown once this is closed.
        """
        job = {"kind": spec.kind, "text": spec.text, "plain": spec.plain, "seconds": self._seconds}
        answer = self._asked(json.dumps(job).encode())
        if answer[:1] == REFUSED:
            raise GrammarRefused(answer[1:].decode())
        assert answer[:1] == DONE
        return answer[1:]

    def close(self) -> None:
        """End the process for good, from any thread. Idempotent."""
        self._over = True
        self._end()

    def _asked(self, job: bytes) -> bytes:
        """The answer. A process that somebody else ended is started again, once."""
        patience = self._seconds * PATIENCE
        for _ in range(2):
            process = self._running()
            began = time.monotonic()
            answer = _exchange(process, [job], patience)
            if answer is not None:
                return answer
            late = time.monotonic() - began > patience
            self._end()
            if self._over:
                raise ShuttingDown(_STOPPED)
            if late:
                raise CompilerBusy(f"the machine is busy: {patience:g} s were not enough to compile a grammar")
            if process.returncode not in _FROM_OUTSIDE:
                bounds = f"{self._seconds:g} s or {MEMORY_BYTES >> 20} MiB"
                raise GrammarRefused(f"compiling it takes more than {bounds}, which are the limits")
        raise CompilerBusy("the process that compiles grammars was ended")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            # One that has closed its pipe is about to end by itself, and why is of interest.
            process.wait(0 if self._over else DYING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._over:
            raise ShuttingDown(_STOPPED)
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        folder = str(Path(runtime.__path__[0]).parent)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.grammar.sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            # Ctrl-C in a terminal is for the runtime, which lets running requests end.
            start_new_session=True,
        )
        self._process = process
        self.starts += 1
        if _exchange(process, [self._head, self._vocabulary], START_S) != READY:
            self._end()
            if self._over:
                raise ShuttingDown(_STOPPED)
            raise CompilerBusy("the process that compiles grammars does not start")
        return process


def _exchange(process: subprocess.Popen[bytes], messages: list[bytes], seconds: float) -> bytes | None:
    """The answer to some messages; None where the process ended or had to be."""
    assert process.stdin is not None
    assert process.stdout is not None
    watch = threading.Timer(seconds, process.kill)
    watch.daemon = True
    watch.start()
    try:
        for message in messages:
            write_frame(process.stdin, message)
        return read_frame(process.stdout)
    except (OSError, ValueError):
        # Also where the pipes were closed under this thread.
        return None
    finally:
        watch.cancel()
