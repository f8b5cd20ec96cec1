"""The engine: one thread that owns the model and the store, and turns requests into tokens.

schedule -> prepare -> forward -> sample -> postprocess, one step after the other. Other threads reach it through an
inbox only, which is read between two steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TypeVar

from radix import PrefixStore, Verdict
from runtime.counters import EngineCounters
from runtime.drafting.drafter import Drafter
from runtime.engine_config import EngineConfig
from runtime.errors import EngineFailed, RequestCancelled, ShuttingDown
from runtime.events import Event, FailedEvent, FinishedEvent, RequestRecord, StartedEvent
from runtime.execution.batch import BatchItem
from runtime.execution.logit_rows import LogitRows
from runtime.execution.model_runner import ModelRunner
from runtime.grammar import GrammarBooks, MaskWorker
from runtime.hit_verifier import HitVerifier
from runtime.inbox import Inbox
from runtime.kv.kv_pool import KVPool
from runtime.models.loaded_model import LoadedModel
from runtime.monitoring.step_clock import StepClock, StepRecord
from runtime.request import GenerateJob, Request, Run
from runtime.sampling.choice_output import ChoiceOutput
from runtime.sampling.sampler import SampledToken, TokenSampler, sample_rows
from runtime.scheduling.admission import AdmissionGate
from runtime.scheduling.program_door import ProgramDoor
from runtime.scheduling.scheduler import Scheduler, StepPlan
from runtime.tiers.opening import open_tiers

log = logging.getLogger(__name__)
T = TypeVar("T")
# Evicted prefixes are remembered up to so many times the pool, to tell them from prompts that were never seen.
_HISTORY_POOLS = 4
_STOPPED = "the runtime has stopped"
# A copy that nobody hears of again must not be waited for without end.
_LOOK_AGAIN_S = 1.0


class Handle:
    """A submitted request, for whoever may want to cancel it."""

    def __init__(self, request: Request, wake: Callable[[], None]) -> None:
        self._request = request
        self._wake = wake

    def cancel(self) -> None:
        """Stop the request before its next step. Idempotent; from any thread."""
        if not self._request.cancelled:
            self._request.cancelled = True
            self._wake()


class Engine:
    """Runs requests on one model against one prefix store."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self.config = config
        self.counters = EngineCounters()
        self.on_finished: list[Callable[[RequestRecord], None]] = []
        # As `on_finished`, called on the engine thread: they must be quick.
        self.on_step: list[Callable[[StepRecord], None]] = []
        # Called on the engine thread after every step, and when idle after every call: they must not block.
        self.after_step: list[Callable[[PrefixStore], None]] = []
        self._tokenizer = loaded.tokenizer
        self._info = loaded.info
        self._eos = frozenset(loaded.info.eos_token_ids)
        graphs_for = config.max_running if config.cuda_graphs else 0
        self._runner = ModelRunner(
            loaded, config.num_blocks, config.block_size, fill=config.kv_fill, graphs_for=graphs_for
        )
        pool_tokens = config.num_blocks * config.block_size
        self._inbox = Inbox()
        self.tiers = open_tiers(config, self._runner.pool, loaded.info, self._inbox.wake)
        self._store = PrefixStore(
            config.num_blocks,
            config.block_size,
            config.eviction,
            track_changes=True,
            record_events=config.record_events,
            history_tokens=_HISTORY_POOLS * pool_tokens,
            leasable_share=config.leasable_share,
            cold=self.tiers.index if self.tiers is not None else None,
        )
        self._scheduler = Scheduler(
            self._store,
            self.counters,
            max_batch_tokens=config.max_batch_tokens,
            max_running=config.max_running,
            explain_across=config.explain_across_namespaces,
            order=config.order,
            passes=config.passes,
            max_itl_s=config.max_itl_s,
            door=ProgramDoor(pool_tokens, time.monotonic, wait_s=config.hold_back_s) if config.hold_back_s else None,
            tiers=self.tiers,
        )
        if self.tiers is not None:
            self.tiers.attach(self._store, self._scheduler.room_came)
            self.after_step.append(self.tiers.turn)
            self.on_step.append(self.tiers.stepped)
        # Nothing could be computed before a copy ends.
        self._stalled = False
        self._broken = False
        self.grammar_books = GrammarBooks()
        self._masks = MaskWorker(loaded.info.vocab_size, self.grammar_books)
        self._drafter = None if config.drafts is None else Drafter(self._store, config.drafts, self.counters)
        if self._drafter is not None:
            self.on_step.append(self._drafter.stepped)
        self.on_step.append(lambda record: self._scheduler.stepped(record.total_s, record.tokens))
        self.verifier: HitVerifier | None = None
        if config.verify_hits > 0:
            self.verifier = HitVerifier(loaded, config.verify_hits, config.block_size)
        self._gate = AdmissionGate(
            vocab_size=loaded.info.vocab_size,
            context_length=loaded.info.context_length,
            pool_tokens=pool_tokens,
            max_queue=config.max_queue,
        )
        self._clock = StepClock()
        self._requests: set[Request] = set()
        self._outgoing: dict[Request, list[Event]] = {}
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    # From other threads

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def kv_pool(self) -> KVPool:
        """The KV itself, which belongs to the engine's thread: see `call`."""
        return self._runner.pool

    def shutdown(self, drain_s: float) -> None:
        """Take no new requests, finish the running ones for up to `drain_s` seconds, fail the rest, end the thread."""
        self._gate.close()

        def stop() -> None:
            self._stop_at = time.monotonic() + drain_s

        self._inbox.post(stop)
        self._thread.join()
        if self.tiers is not None:
            self.tiers.close(persist=not self._broken)
        self._masks.close()

    def submit(self, job: GenerateJob, on_events: Callable[[list[Event]], None]) -> Handle:
        """Queue a job. `on_events` is called on the engine thread, at most once a step, and must not block.

        Raises:
            InvalidRequest: a field outside its limit.
            RequestTooLarge: it could not run even with the pool to itself.
            QueueFull, ShuttingDown.
        """
        try:
            max_tokens = self._gate.admit(job)
        except Exception:
            self.counters.refused += 1
            raise
        request = Request(job, max_tokens, on_events)
        if not self._inbox.post(lambda: self._take_in(request)):
            self._gate.admitted()
            raise ShuttingDown(_STOPPED)
        return Handle(request, self._inbox.wake)

    def explain(self, job: GenerateJob) -> Future[Verdict]:
        """Say why each prompt token of `job` would hit or miss if it were admitted now."""
        return self.call(lambda store: self._scheduler.explain(job))

    def program_ended(self, program: Hashable) -> None:
        """Nobody comes back to a program: what waits for room may have what was kept for it."""
        self.call(lambda store: self._scheduler.program_ended(program))

    def call(self, fn: Callable[[PrefixStore], T]) -> Future[T]:
        """Run `fn` on the engine thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(self._store))
            except BaseException as error:
                future.set_exception(error)

        if not self._inbox.post(run):
            future.set_exception(ShuttingDown(_STOPPED))
        return future

    # On the engine thread

    def _loop(self) -> None:
        error: Exception = ShuttingDown("the runtime shut down before the request was done")
        try:
            self._serve()
        except Exception as cause:
            log.exception("the engine's thread failed")
            self._broken = True
            error = EngineFailed(f"the engine failed: {type(cause).__name__}: {cause}")
        # Whoever asked for something before is told: nobody waits for a thread that is gone.
        self._inbox.close()
        for request in list(self._requests):
            try:
                self._fail(request, error)
            except Exception:
                log.exception("request %s could not be given up", request.job.request_id)
                self._tell(request, FailedEvent(error))
        self._send()
        _call_all(self.after_step, self._store)

    def _serve(self) -> None:
        while True:
            if self._stalled and self._requests:
                self._inbox.wait(_LOOK_AGAIN_S)
                self._clock.skip()
            elif not self._requests and self._stop_at is None:
                if self.verifier is None or not self.verifier.work():
                    self._inbox.wait(_LOOK_AGAIN_S if self.tiers is not None and self.tiers.unfinished else None)
                self._clock.skip()
            self._inbox.read()
            self._drop_cancelled()
            self._clock.lap("inbox")
            if self._stop_at is not None and (not self._requests or time.monotonic() >= self._stop_at):
                break
            if self._requests:
                self._step()
            self._count_runs()
            self._send()
            self._clock.lap("stream")
            _call_all(self.after_step, self._store)
            self._clock.lap("hooks")
            self._record_step()

    def _take_in(self, request: Request) -> None:
        self.counters.requests += 1
        self._requests.add(request)
        try:
            run = self._new_run(request, 0)
        except Exception as error:
            self._fail_one(request, error, "could not be taken in")
            return
        request.runs.append(run)
        self._scheduler.enqueue(run)

    def _new_run(self, request: Request, index: int) -> Run:
        job = request.job
        sampler = TokenSampler(job.sampling, job.tokens, index, self._info.vocab_size)
        output = ChoiceOutput(index, self._tokenizer, job.tokens, job.sampling, request.max_tokens, self._eos)
        return Run(request, sampler, output)

    def _drop_cancelled(self) -> None:
        for request in [r for r in self._requests if r.cancelled]:
            self._end(request, FailedEvent(RequestCancelled("the request was cancelled")), "cancelled")

    def _step(self) -> None:
        plan = self._scheduler.schedule()
        self._count_runs()
        for request in plan.admitted:
            self._gate.admitted()
            self.counters.host_hit_tokens += request.host_tokens
            self.counters.disk_hit_tokens += request.disk_tokens
            self._tell(request, StartedEvent(request.usage(), request.verdict))
        for run, error in plan.impossible:
            self._fail(run.request, EngineFailed(f"the request does not fit: {error}"))
        work = [(run, n) for run, n in plan.work if run.seq is not None]
        if self._drafter is not None:
            plan.copies += self._drafter.propose(work, self.config.max_batch_tokens - sum(n for _, n in work))
        self._clock.lap("schedule")
        self._stalled = not work and self.tiers is not None and self.tiers.waiting
        if not work:
            return
        try:
            logits = self._forward(plan, work)
        except Exception as error:
            log.exception("a forward pass over %d sequences failed", len(work))
            for request in {run.request for run, _ in work}:
                self._fail(request, EngineFailed(f"the forward pass failed: {type(error).__name__}: {error}"))
            return
        self.counters.steps += 1
        self._clock.computed(len(work), sum(n + run.drafted for run, n in work))
        if logits.bad:
            work, logits = self._without_bad_rows(work, logits)
        self._clock.lap("sample")
        self._commit(work)
        self._clock.lap("commit")
        rows = [run for run, n in work if run.uncomputed == 0]
        self._choose(rows, logits)

    def _without_bad_rows(
        self, work: list[tuple[Run, int]], logits: LogitRows
    ) -> tuple[list[tuple[Run, int]], LogitRows]:
        """Fail the requests that no token can be chosen for before their KV is committed: nobody may hit on NaN.

        What is wrong with a draft's rows is the draft's business.
        """
        keep: list[int] = []
        row = 0
        for run, n in work:
            if self._wants_logits(run, n):
                rows = range(row, row + 1 + run.drafted)
                row = rows.stop
                if rows.start in logits.bad:
                    self._fail(run.request, logits.error(rows.start))
                else:
                    keep += rows
        return [(run, n) for run, n in work if not run.request.ended], logits.take(keep)

    @staticmethod
    def _wants_logits(run: Run, n: int) -> bool:
        return run.uncomputed == n and not run.request.job.prefill_only

    def _count_runs(self) -> None:
        self.counters.running = len(self._scheduler.running)
        self.counters.waiting = len(self._scheduler.waiting)

    def _forward(self, plan: StepPlan, work: list[tuple[Run, int]]) -> LogitRows:
        """Return the logits of the runs whose tokens are all computed after this pass, each followed by its draft's."""
        items = []
        for run, n in work:
            assert run.seq is not None
            rows = 1 + run.drafted if self._wants_logits(run, n) else 0
            items.append(BatchItem(run.ahead(n), run.seq.length, run.seq.table, rows))
        if plan.copies:
            self._runner.copy_blocks(plan.copies)
        choosing = [(run.grammar, run.drafted_tokens()) for run, n in work if self._wants_logits(run, n)]
        self._masks.begin(choosing)
        laid_out = self._runner.prepare(items)
        self._clock.lap("prepare")
        logits = self._runner.run(laid_out, laid_out.logit_rows)
        self._clock.lap("forward")
        return self._masks.apply(choosing, LogitRows.of(logits))

    def _commit(self, work: list[tuple[Run, int]]) -> None:
        for run, n in work:
            seq = run.seq
            assert seq is not None
            request = run.request
            start = seq.length
            of_prompt = max(0, min(start + n, request.prompt_tokens) - start)
            request.computed_tokens += of_prompt
            self.counters.computed_tokens += of_prompt
            tokens = run.tokens[start : start + n]
            self._store.commit(seq, tokens[:of_prompt])
            self._store.commit(seq, tokens[of_prompt:], output=True)

    def _choose(self, rows: list[Run], logits: LogitRows) -> None:
        """Give every run whose logits are there its next token, and with a draft those that it foresaw."""
        now = time.monotonic()
        choosers, sources = self._choosers(rows, now)
        outputs = [run.output.token_ids for run in choosers]
        tokens = sample_rows(logits.take(sources), [run.sampler for run in choosers], outputs)
        self._clock.lap("sample")
        for run, row, token in zip(choosers, sources, tokens, strict=True):
            if run.request.ended:
                # Another choice of it failed a moment ago.
                continue
            try:
                if isinstance(token, Exception):
                    raise token
                if self.verifier is not None:
                    self.verifier.saw(run, logits.logits[row])
                self._take_tokens(run, self._with_draft(run, token, logits, row), now)
            except Exception as error:
                self._fail_one(run.request, error, "could not be given its next token")
        self._clock.lap("detokenize")

    def _choosers(self, rows: list[Run], now: float) -> tuple[list[Run], list[int]]:
        """Return who chooses from which row of the logits, after forking the runs whose prompt just ended."""
        choosers: list[Run] = []
        sources: list[int] = []
        row = 0
        for run in rows:
            request = run.request
            if request.prefilled is None:
                request.prefilled = now
            if request.job.prefill_only:
                self._finish(request)
                continue
            choosers.append(run)
            sources.append(row)
            if run.output.index == 0 and not run.output.token_ids:
                for index in range(1, request.job.sampling.n):
                    child = self._new_run(request, index)
                    request.runs.append(child)
                    self._scheduler.add_fork(run, child)
                    choosers.append(child)
                    sources.append(row)
            row += 1 + run.drafted
        return choosers, sources

    def _with_draft(self, run: Run, token: SampledToken, logits: LogitRows, row: int) -> list[SampledToken]:
        """A token that was chosen from a row of the logits, and what the run's draft foresaw after it."""
        if self._drafter is None or not run.drafted:
            return [token]
        return self._drafter.verify(run, token, logits.between(row + 1, row + 1 + run.drafted))

    def _take_tokens(self, run: Run, tokens: list[SampledToken], now: float) -> None:
        request = run.request
        if request.first_token is None:
            request.first_token = now
        taken = 0
        ends = False
        while not ends and taken < len(tokens):
            token = tokens[taken]
            run.append(token.token_id)
            delta = run.output.push(token)
            self._tell(request, delta)
            taken += 1
            ends = delta.finish_reason is not None
        if run.last_token_at is not None:
            request.itls += [(now - run.last_token_at) / taken] * taken
        else:
            request.itls += [0.0] * (taken - 1)
        run.last_token_at = now
        self.counters.output_tokens += taken
        if taken > 1:
            assert run.seq is not None
            # Their KV was computed as a draft. The last token's was not, or nobody needs it.
            self._store.commit(run.seq, run.tokens[run.seq.length : -1], output=True)
            self.counters.accepted_draft_tokens += taken - 1
        if ends:
            self._scheduler.remove(run)
            run.done = True
            if all(r.done for r in request.runs):
                self._finish(request)

    # Endings

    def _finish(self, request: Request) -> None:
        outputs = tuple(tuple(run.output.token_ids) for run in request.runs)
        self._end(request, FinishedEvent(request.usage(), request.timing(), outputs), "finished")

    def _fail_one(self, request: Request, error: Exception, what: str) -> None:
        """One request meets a fault of ours: it ends, and what else runs goes on."""
        log.error("request %s %s", request.job.request_id, what, exc_info=error)
        self._fail(request, EngineFailed(f"the request {what}: {type(error).__name__}: {error}"))

    def _fail(self, request: Request, error: Exception) -> None:
        self._end(request, FailedEvent(error), "failed")

    def _end(self, request: Request, event: Event, outcome: str) -> None:
        if request.ended:
            return
        request.ended = True
        for run in request.runs:
            self._scheduler.remove(run)
        self._requests.discard(request)
        if request.admitted is None:
            self._gate.admitted()
        setattr(self.counters, outcome, getattr(self.counters, outcome) + 1)
        self._tell(request, event)
        record = request.record(outcome)
        self._gate.note_duration(record.timing.total_s)
        _call_all(self.on_finished, record)

    def _tell(self, request: Request, event: Event) -> None:
        self._outgoing.setdefault(request, []).append(event)

    def _send(self) -> None:
        for request, events in self._outgoing.items():
            try:
                request.on_events(events)
            except Exception:
                log.exception("the owner of request %s failed to take its events", request.job.request_id)
                request.cancelled = True
        self._outgoing.clear()

    def _record_step(self) -> None:
        record = self._clock.take()
        if record is not None:
            _call_all(self.on_step, record)


def _call_all(callbacks: list[Callable[[T], None]], value: T) -> None:
    """Tell those who watch; one that fails keeps neither the others nor the engine from going on."""
    for callback in callbacks:
        try:
            callback(value)
        except Exception:
            log.exception("one that watches the engine failed")
