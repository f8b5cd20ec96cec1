"""Compiled grammars, kept by what they are made of."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from runtime.errors import ShuttingDown
from runtime.grammar.books import GrammarBooks
from runtime.grammar.compile_process import CompileProcess
from runtime.grammar.interface import CompiledGrammar, GrammarLibrary
from runtime.grammar.spec import CompilerBusy, GrammarRefused, GrammarSpec

WORKERS = 2
MAX_WAITING = 64
MAX_CACHED = 512
MAX_CACHED_BYTES = 256 << 20


@dataclass
class _Pending:
    """A grammar that is being compiled or waits for it, and how many wait for it."""

    future: Future[CompiledGrammar]
    trusted: bool
    waiters: int = 1


class GrammarCompiler:
    """Compiles off everybody's thread: the runtime's own grammars here, strangers' in processes that can be ended.

    Two of these at most, started when they are first needed.
    """

    def __init__(self, library: GrammarLibrary, vocab_size: int, *, seconds: float, books: GrammarBooks) -> None:
        """`seconds` is the time that a stranger's grammar may take."""
        self.library = library
        self._books = books
        # Apart from one another: what the runtime makes itself takes milliseconds, and waits for no stranger's.
        self._own = ThreadPoolExecutor(1, thread_name_prefix="grammar-own")
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="grammar")
        self._strangers = 0
        self._closed = False
        vocabulary = library.vocabulary()
        self._processes = [CompileProcess(vocabulary, vocab_size, seconds) for _ in range(WORKERS)]
        # Of two that are idle the started one is taken: it was put back last.
        self._idle = list(self._processes)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CompiledGrammar | GrammarRefused] = OrderedDict()
        self._pending: dict[str, _Pending] = {}

    def compiled(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """The compiled grammar of `spec`; from any thread.

        The future raises GrammarRefused, CompilerBusy or ShuttingDown. Raises the last two at once where as many of
        strangers' grammars wait as may, or this is closed.
        """
        with self._lock:
            self._books.lookups += 1
            known = self._kept.get(spec.digest)
            if known is not None:
                self._kept.move_to_end(spec.digest)
                self._books.hits += 1
                return _done(known)
            pending = self._pending.get(spec.digest)
            if pending is not None:
                pending.waiters += 1
                return pending.future
            if self._closed:
                raise ShuttingDown("the runtime has stopped")
            if not spec.trusted and self._strangers >= MAX_WAITING:
                raise CompilerBusy(f"{MAX_WAITING} grammars wait to be compiled, which is the limit")
            future = (self._own if spec.trusted else self._threads).submit(self._compile, spec)
            self._pending[spec.digest] = _Pending(future, spec.trusted)
            self._strangers += not spec.trusted
            return future

    def leave(self, spec: GrammarSpec, future: Future[CompiledGrammar]) -> None:
        """Whoever was given this future waits for it no more: what nobody waits for is not begun."""
        with self._lock:
            pending = self._pending.get(spec.digest)
            if pending is None or pending.future is not future:
                return
            pending.waiters -= 1
            if not pending.waiters and future.cancel():
                del self._pending[spec.digest]
                self._strangers -= not pending.trusted

    def close(self) -> None:
        """End the processes; what is being compiled is refused."""
        with self._lock:
            self._closed = True
        for threads in (self._own, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        began = time.perf_counter()
        outcome: CompiledGrammar | GrammarRefused | None = None
        try:
            outcome = self.library.compile(spec) if spec.trusted else self._compile_apart(spec)
            return outcome
        except GrammarRefused as error:
            outcome = error
            raise
        finally:
            self._books.compile.observe_one(time.perf_counter() - began)
            with self._lock:
                del self._pending[spec.digest]
                self._strangers -= not spec.trusted
                if outcome is not None:
                    self._keep(spec.digest, outcome)

    def _compile_apart(self, spec: GrammarSpec) -> CompiledGrammar:
        with self._lock:
            process = self._idle.pop()
        try:
            return self.library.load(process.compile(spec), spec)
        finally:
            with self._lock:
                self._idle.append(process)

    def _keep(self, digest: str, outcome: CompiledGrammar | GrammarRefused) -> None:
        books = self._books
        self._kept[digest] = outcome
        if isinstance(outcome, GrammarRefused):
            books.refused += 1
        else:
            books.cached += 1
            books.cached_bytes += outcome.size_bytes
        while len(self._kept) > MAX_CACHED or books.cached_bytes > MAX_CACHED_BYTES:
            _, gone = self._kept.popitem(last=False)
            if not isinstance(gone, GrammarRefused):
                books.cached -= 1
                books.cached_bytes -= gone.size_bytes


def _done(known: CompiledGrammar | GrammarRefused) -> Future[CompiledGrammar]:
    future: Future[CompiledGrammar] = Future()
    if isinstance(known, GrammarRefused):
        future.set_exception(GrammarRefused(str(known)))
    else:
        future.set_result(known)
    return future
