"""Compiled grammars, kept by what they are made of."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from runtime.errors import ShuttingDown
from runtime.grammar.books import GrammarBooks
from runtime.grammar.compile_process import CompileProcess
from runtime.grammar.fair_queue import FairQueue, QueueIsFull
from runtime.grammar.interface import CompiledGrammar, GrammarLibrary
from runtime.grammar.spec import CompilerBusy, GrammarRefused, GrammarSpec

WORKERS = 3
# One caller leaves a process for others.
WORKERS_EACH = 2
MAX_WAITING = 64
MAX_CACHED = 512
MAX_CACHED_BYTES = 256 << 20


@dataclass
class _Pending:
    """A grammar that is being compiled or waits for it, and how many wait for it."""

    spec: GrammarSpec
    future: Future[CompiledGrammar]
    waiters: int = 1


class GrammarCompiler:
    """Compiles off everybody's thread: the runtime's own grammars here, strangers' in processes that can be ended.

    Three of these at most, started when they are first needed. Callers take turns at them, two at a time for each.
    """

    def __init__(self, library: GrammarLibrary, vocab_size: int, *, seconds: float, books: GrammarBooks) -> None:
        """`seconds` is the time that a stranger's grammar may take."""
        self.library = library
        self._books = books
        # Apart from one another: what the runtime makes itself takes milliseconds, and waits for no stranger's.
        self._own = ThreadPoolExecutor(1, thread_name_prefix="grammar-own")
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="grammar")
        self._queue = FairQueue(MAX_WAITING, WORKERS_EACH)
        self._at_work = 0
        self._closed = False
        vocabulary = library.vocabulary()
        self._processes = [CompileProcess(vocabulary, vocab_size, seconds) for _ in range(WORKERS)]
        # Of those that are idle a started one is taken: it was put back last.
        self._idle = list(self._processes)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CompiledGrammar | GrammarRefused] = OrderedDict()
        self._pending: dict[str, _Pending] = {}

    def compiled(self, spec: GrammarSpec, caller: Hashable = None) -> Future[CompiledGrammar]:
        """The compiled grammar of `spec`; from any thread. `caller` is whose turn it takes.

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
            if self._closed:
                raise ShuttingDown("the runtime has stopped")
            pending = self._pending.get(spec.digest)
            if pending is None:
                future = self._begin(spec, caller)
                self._pending[spec.digest] = _Pending(spec, future)
                return future
            pending.waiters += 1
            if not pending.spec.trusted and not pending.future.running():
                # Whoever asked for the same before may have much else waiting.
                with suppress(QueueIsFull):
                    self._wait_for_turn(caller, spec)
            return pending.future

    def leave(self, spec: GrammarSpec, future: Future[CompiledGrammar]) -> None:
        """Whoever was given this future waits for it no more: what nobody waits for is not begun."""
        with self._lock:
            pending = self._pending.get(spec.digest)
            if pending is None or pending.future is not future:
                return
            pending.waiters -= 1
            if not pending.waiters and future.cancel():
                del self._pending[spec.digest]
                self._queue.discard(spec.digest)

    def close(self) -> None:
        """End the processes; what is being compiled is refused."""
        with self._lock:
            self._closed = True
            waiting = [pending.future for pending in self._pending.values()]
        for future in waiting:
            future.cancel()
        for threads in (self._own, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _begin(self, spec: GrammarSpec, caller: Hashable) -> Future[CompiledGrammar]:
        if spec.trusted:
            return self._own.submit(self._compile, spec)
        try:
            self._wait_for_turn(caller, spec)
        except QueueIsFull:
            raise self._full() from None
        return Future()

    def _wait_for_turn(self, caller: Hashable, spec: GrammarSpec) -> None:
        pushed_out = self._queue.put(caller, spec.digest)
        if pushed_out is not None:
            self._pending.pop(pushed_out).future.set_exception(self._full())
        if self._at_work < WORKERS:
            self._at_work += 1
            self._threads.submit(self._work)

    def _full(self) -> CompilerBusy:
        return CompilerBusy(f"{self._queue.limit} grammars wait to be compiled, which is the limit")

    def _work(self) -> None:
        """Compile strangers' grammars until none may be begun."""
        while True:
            with self._lock:
                taken = None if self._closed else self._queue.take()
                if taken is None:
                    self._at_work -= 1
                    return
                caller, digest = taken
                pending = self._pending[digest]
                pending.future.set_running_or_notify_cancel()
            try:
                compiled = self._compile(pending.spec, caller)
            except BaseException as error:
                pending.future.set_exception(error)
            else:
                pending.future.set_result(compiled)

    def _compile(self, spec: GrammarSpec, caller: Hashable = None) -> CompiledGrammar:
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
                if not spec.trusted:
                    self._queue.done(caller)
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
