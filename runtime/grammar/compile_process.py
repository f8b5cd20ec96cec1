"""The runtime's side of the process that compiles grammars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import runtime
from runtime.grammar.frames import DONE, READY, REFUSED, read_frame, write_frame
from runtime.grammar.spec import GrammarRefused, GrammarSpec

# Of address space, beyond what the libraries take.
MEMORY_BYTES = 1 << 30
# To start it, which loads torch, on a busy machine.
START_S = 60.0
# A process ends itself at its limit; this much later it is ended.
GRACE_S = 1.0


class CompileProcess:
    """One such process, started at the first grammar and again after one that ended it. For one thread at a time."""

    def __init__(self, vocabulary: bytes, vocab_size: int, seconds: float) -> None:
        """`seconds` is the time that a grammar may take."""
        self._vocabulary = vocabulary
        self._head = json.dumps({"memory_bytes": MEMORY_BYTES, "vocab_size": vocab_size}).encode()
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def compile(self, spec: GrammarSpec) -> bytes:
        """A compiled grammar as the library dumps it. Raises GrammarRefused, also where the bounds are exceeded."""
        process = self._running()
        job = {"kind": spec.kind, "text": spec.text, "plain": spec.plain, "seconds": self._seconds}
        answer = _exchange(process, [json.dumps(job).encode()], self._seconds + GRACE_S)
        if answer is None:
            self.close()
            raise GrammarRefused(
                f"compiling it takes more than {self._seconds:g} s or {MEMORY_BYTES >> 20} MiB, which are the limits"
            )
        if answer[:1] == REFUSED:
            raise GrammarRefused(answer[1:].decode())
        assert answer[:1] == DONE
        return answer[1:]

    def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        folder = str(Path(runtime.__path__[0]).parent)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.grammar.sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._process = process
        self.starts += 1
        if _exchange(process, [self._head, self._vocabulary], START_S) != READY:
            self.close()
            raise GrammarRefused("the process that compiles grammars does not start")
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
    except OSError:
        return None
    finally:
        watch.cancel()
