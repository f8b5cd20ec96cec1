"""Plays sessions against a target: calls of a session in order, sessions side by side, branches in parallel."""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..aio import AsyncSession
from ..errors import RadixloopError, Unavailable
from ..generate_options import GenerateOptions
from ..messages import ChatMessage
from ..prompts import Prompt
from ..results import Delta, Event, Finished, Started
from ..traces import Call, Session
from .options import ReplayOptions
from .plan import PlannedSession
from .records import CallRecord, Run

if TYPE_CHECKING:
    from typing_extensions import Unpack

EventStream = AbstractAsyncContextManager[AsyncIterator[Event]]


class Streams(Protocol):
    """What recorded replies need of a target: the events of one call, which leaving the block stops."""

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> EventStream: ...


class Outgrown(Exception):
    """The next prompt would not fit the context."""


@dataclass
class State:
    """Where a session stands: its last call, the history as the model saw it, its session in the runtime.

    A branch begins with `fork_of`, its parent's session, and forks it before its first call.
    """

    last: Call | None = None
    history: list[ChatMessage] = field(default_factory=list)
    server: AsyncSession | None = None
    fork_of: AsyncSession | None = None


class Driver:
    """One pass over planned sessions with recorded replies: each call sends its planned prompt, whatever came back.

    `salt` is the cache namespace; `use_cache=False` is the baseline.
    """

    def __init__(
        self,
        target: Streams,
        options: ReplayOptions,
        *,
        salt: str,
        use_cache: bool = True,
        on_call: Callable[[CallRecord], None] = lambda record: None,
    ) -> None:
        self._target = target
        self._options = options
        self._salt = salt
        self._use_cache = use_cache
        self._on_call = on_call
        self._run = Run("")
        self._began = 0.0
        self._target_gone = False

    async def run(self, name: str, sessions: Sequence[PlannedSession]) -> Run:
        """Cancelling the task that awaits this stops the calls in flight and returns what there is."""
        run = self._run = Run(name)
        recorded = sum(session.recorded_calls for session in sessions)
        waiting = iter(sessions)
        self._began = time.perf_counter()
        workers = [asyncio.create_task(self._worker(waiting)) for _ in range(max(1, self._options.concurrency))]
        try:
            await asyncio.gather(*workers)
        except asyncio.CancelledError:
            run.interrupted = True
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            run.wall_s = self._now()
        run.records.sort(key=lambda record: record.started_s)
        run.skipped_calls = recorded - len(run.records)
        return run

    async def _worker(self, waiting: Iterator[PlannedSession]) -> None:
        for planned in waiting:
            await self._session(planned, State(), 0)

    async def _session(self, planned: PlannedSession, state: State, turns_before: int) -> None:
        session = planned.session
        cut = not all(planned.fits)
        try:
            for turn, (call, fits) in enumerate(zip(session.calls, planned.fits, strict=True), 1):
                if not fits or self._target_gone:
                    continue
                number = turns_before + turn
                pause_s = await self._pause(call) if number > 1 else 0.0
                if not await self._call(session, number, call, planned.prompts[turn - 1], state, pause_s):
                    break
                await self._branches(planned.branches.get(turn, ()), state, number)
        except Outgrown:
            cut = True
        finally:
            await self._close(state)
        self._run.cut_sessions += cut

    async def _branches(self, branches: Sequence[PlannedSession], state: State, turn: int) -> None:
        states = [State(state.last, list(state.history), fork_of=state.server) for _ in branches]
        await asyncio.gather(*(self._session(b, own, turn) for b, own in zip(branches, states, strict=True)))

    async def _pause(self, call: Call) -> float:
        """Waits as the call's tools would have it wait, and says how many seconds that was to be."""
        latency = self._options.tool_latency
        pause = call.tool_latency_s if latency == "recorded" else 0.0 if latency == "none" else latency
        if pause:
            await asyncio.sleep(float(pause))
        return float(pause or 0.0)

    async def _call(
        self, session: Session, turn: int, call: Call, planned: Prompt, state: State, pause_s: float
    ) -> bool:
        """Makes one call and notes what came of it; False when it failed. Raises Outgrown instead of calling."""
        record = CallRecord(session.id, turn, self._now(), pause_s=pause_s)
        try:
            prompt = await self._prompt(session, call, planned, state)
            record.started_s = self._now()
            async with self._stream(prompt, state, session) as events:
                await self._measure(record, events)
                await self._answered(state, events)
        except RadixloopError as error:
            record.error = str(error)
            self._target_gone = self._target_gone or isinstance(error, Unavailable)
        self._run.records.append(record)
        self._on_call(record)
        return record.error is None

    async def _prompt(self, session: Session, call: Call, planned: Prompt, state: State) -> Prompt:
        """What to send for this call."""
        return planned

    def _stream(self, prompt: Prompt, state: State, session: Session) -> EventStream:
        options = self._generate_options()
        options["salt"] = self._salt
        # The runtime takes short printable names; ids of traces may be anything.
        options["conversation"] = hashlib.sha1(session.id.encode(), usedforsecurity=False).hexdigest()
        return self._target.stream(prompt, **options)

    def _generate_options(self) -> GenerateOptions:
        return {
            "max_tokens": self._options.output_tokens,
            "ignore_eos": self._options.ignore_eos,
            "bypass_cache": not self._use_cache,
            "return_prompt_ids": True,
        }

    async def _measure(self, record: CallRecord, events: AsyncIterator[Event]) -> None:
        last = record.started_s
        async for event in events:
            now = self._now()
            if isinstance(event, Delta):
                tokens = len(event.token_ids)
                if record.ttft_s is None and tokens:
                    record.ttft_s = now - record.started_s
                elif tokens:
                    record.itls_s.extend([(now - last) / tokens] * tokens)
                record.output_ids.extend(event.token_ids)
                last = now
            elif isinstance(event, Started):
                record.usage = event.usage
                record.verdict = event.verdict
                record.prompt_ids = event.prompt_ids or array("i")
            elif isinstance(event, Finished):
                record.usage, record.timing, record.ended_s = event.usage, event.timing, now

    async def _answered(self, state: State, events: AsyncIterator[Event]) -> None:
        """The call's events have all come."""

    async def _close(self, state: State) -> None:
        """The session has ended."""

    def _now(self) -> float:
        return time.perf_counter() - self._began
