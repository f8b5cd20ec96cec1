"""Plays sessions against a runtime: calls of a session in order, sessions side by side, branches in parallel."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..aio import AsyncGenerationStream, AsyncRadixClient, AsyncSession
from ..errors import RadixloopError, Unavailable
from ..generate_options import GenerateOptions
from ..messages import ChatMessage
from ..prompts import Chat, Prompt
from ..results import Delta, Finished, Started
from ..traces import Call, Session
from .options import ReplayOptions
from .plan import PlannedSession, new_messages, prompt_of
from .records import CallRecord, Run


class _Outgrown(Exception):
    """The next prompt would not fit the context."""


@dataclass
class _State:
    """Where a session stands: its last call, the history as the model saw it, its session in the runtime.

    A branch begins with `fork_of`, its parent's session, and forks it before its first call.
    """

    last: Call | None = None
    history: list[ChatMessage] = field(default_factory=list)
    server: AsyncSession | None = None
    fork_of: AsyncSession | None = None


class Driver:
    """One pass over planned sessions. `salt` is the cache namespace; `use_cache=False` is the baseline."""

    def __init__(
        self,
        client: AsyncRadixClient,
        options: ReplayOptions,
        *,
        salt: str,
        use_cache: bool = True,
        on_call: Callable[[CallRecord], None] = lambda record: None,
    ) -> None:
        self._client = client
        self._options = options
        self._salt = salt
        self._use_cache = use_cache
        self._on_call = on_call
        self._run = Run("")
        self._began = 0.0
        self._runtime_gone = False

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
            await self._session(planned, _State(), 0)

    async def _session(self, planned: PlannedSession, state: _State, turns_before: int) -> None:
        session = planned.session
        cut = not all(planned.fits)
        try:
            for turn, (call, fits) in enumerate(zip(session.calls, planned.fits, strict=True), 1):
                if not fits or self._runtime_gone:
                    continue
                if turns_before + turn > 1:
                    await self._pause(call)
                if not await self._call(session, turns_before + turn, call, state):
                    break
                await self._branches(planned.branches.get(turn, ()), state, turns_before + turn)
        except _Outgrown:
            cut = True
        finally:
            await self._close(state)
        self._run.cut_sessions += cut

    async def _branches(self, branches: Sequence[PlannedSession], state: _State, turn: int) -> None:
        states = [_State(state.last, list(state.history), fork_of=state.server) for _ in branches]
        await asyncio.gather(*(self._session(b, own, turn) for b, own in zip(branches, states, strict=True)))

    async def _pause(self, call: Call) -> None:
        latency = self._options.tool_latency
        pause = call.tool_latency_s if latency == "recorded" else 0.0 if latency == "none" else latency
        if pause:
            await asyncio.sleep(float(pause))

    async def _call(self, session: Session, turn: int, call: Call, state: _State) -> bool:
        """Makes one call and notes what came of it; False when it failed. Raises _Outgrown instead of calling."""
        record = CallRecord(session.id, turn, self._now())
        try:
            prompt = await self._prompt(session, call, state)
            record.started_s = self._now()
            async with self._stream(prompt, state, session) as stream:
                await self._measure(record, stream)
                state.history.append((await stream.result()).as_message())
        except RadixloopError as error:
            record.error = str(error)
            self._runtime_gone = self._runtime_gone or isinstance(error, Unavailable)
        self._run.records.append(record)
        self._on_call(record)
        return record.error is None

    async def _prompt(self, session: Session, call: Call, state: _State) -> Prompt:
        """What to send for this call."""
        options = self._options
        new = None if state.last is None else new_messages(state.last, call)
        state.last = call
        if isinstance(call.prompt, str) or not (options.live_replies or options.server_sessions):
            return prompt_of(call, session)
        state.history = list(call.prompt) if new is None else [*state.history, *new]
        prompt = Chat(state.history, session.tools_of(call))
        if options.max_context is not None:
            length = (await self._client.tokenize(prompt)).count
            if length + options.output_tokens > options.max_context:
                raise _Outgrown
        if not options.server_sessions:
            return prompt
        if state.fork_of is not None:
            state.server, state.fork_of = await state.fork_of.fork(), None
        if new is not None and state.server is not None:
            return Chat(new)
        # The history was rewritten (or begins): no session in the runtime extends to it.
        await self._close(state)
        state.server = await self._client.session(salt=self._salt)
        return prompt

    def _stream(self, prompt: Prompt, state: _State, session: Session) -> AsyncGenerationStream:
        options: GenerateOptions = {
            "max_tokens": self._options.output_tokens,
            "ignore_eos": self._options.ignore_eos,
            "bypass_cache": not self._use_cache,
            "return_prompt_ids": True,
        }
        if state.server is not None:
            return state.server.stream(prompt, **options)
        options["salt"] = self._salt
        # The runtime takes short printable names; ids of traces may be anything.
        options["conversation"] = hashlib.sha1(session.id.encode(), usedforsecurity=False).hexdigest()
        return self._client.stream(prompt, **options)

    async def _measure(self, record: CallRecord, stream: AsyncGenerationStream) -> None:
        last = record.started_s
        async for event in stream:
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

    async def _close(self, state: _State) -> None:
        if state.server is None:
            return
        server, state.server = state.server, None
        # A session that cannot be closed is forgotten by the runtime when it has idled long enough.
        with contextlib.suppress(RadixloopError):
            await server.close()

    def _now(self) -> float:
        return time.perf_counter() - self._began
