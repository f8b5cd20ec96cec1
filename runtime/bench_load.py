"""What surrounds the steps that `radix-runtime bench` times: a pool full of agents' histories, readers of streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from radix import Namespace, PrefixStore
from runtime.engine import Engine, Handle
from runtime.events import FailedEvent, FinishedEvent, StartedEvent
from runtime.request import GenerateJob
from runtime.services.replies import ReplyWriter
from runtime.services.stream_buffer import StreamBuffer
from runtime.services.wakeups import WakeUps

Ints = NDArray[np.int32]

# Sessions of agents: a policy and tools that many share, then turns of which some were tried twice. In a small pool
# they are shorter.
_AGENTS = 6
_POLICY_TOKENS = 1_200
_TURN_TOKENS = 180
_POLICIES_A_POOL = 80
_TURNS_A_POOL = 500
_TURNS = 10
_RETRIED = 0.2


class Prompts:
    """Token ids made up, the same every time."""

    def __init__(self, vocab_size: int) -> None:
        self._random = np.random.default_rng(0)
        self._vocab_size = vocab_size

    def tokens(self, n: int) -> Ints:
        """int32[n]."""
        return self._random.integers(0, self._vocab_size, n, dtype=np.int32)

    def sessions(self, pool_tokens: int) -> Iterator[tuple[Ints, Ints]]:
        """Endless turns of sessions: the history before the turn, and what it adds."""
        turn_tokens = min(_TURN_TOKENS, pool_tokens // _TURNS_A_POOL)
        policies = [self.tokens(min(_POLICY_TOKENS, pool_tokens // _POLICIES_A_POOL)) for _ in range(_AGENTS)]
        while True:
            history = policies[self._random.integers(_AGENTS)]
            for _ in range(_TURNS):
                if self._random.random() < _RETRIED:
                    yield history, self.tokens(turn_tokens)
                turn = self.tokens(turn_tokens)
                yield history, turn
                history = np.concatenate([history, turn])


def remember(store: PrefixStore, tokens: Ints, namespace: Namespace, prompt: int) -> Ints:
    """Have the store hold `tokens` without a forward pass; the first `prompt` were a prompt, the others written.

    Returns:
        int32, the blocks that hold them.
    """
    seq = store.open(tokens, namespace)
    store.reserve(seq, len(tokens) - seq.length)
    store.commit(seq, tokens[seq.length : prompt])
    store.commit(seq, tokens[max(seq.length, prompt) :], output=True)
    blocks = seq.table.copy()
    store.close(seq)
    return blocks


def fill(store: PrefixStore, prompts: Prompts, namespace: Namespace) -> None:
    """Fill the pool with sessions, until the first of them have to go."""
    for history, turn in prompts.sessions(store.num_blocks * store.block_size):
        # As an agent's call does: its reply is a third of the turn that it adds.
        tokens = np.concatenate([history, turn])
        if store.demoter is not None and store.free_blocks * store.block_size < len(tokens):
            # Full: what would go down to a tier is not free at once.
            return
        remember(store, tokens, namespace, prompt=len(tokens) - len(turn) // 3)
        if store.stats().evicted_blocks:
            return


class Readers:
    """An event loop in a thread of its own that reads every stream and serialises it, as the server's does.

    A context manager: its end waits for nothing and stops the loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._wakeups = WakeUps(self._loop)
        engine.after_step.append(lambda store: self._wakeups.flush())
        self._thread = threading.Thread(target=self._loop.run_forever, name="readers", daemon=True)

    def __enter__(self) -> Readers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, job: GenerateJob) -> Future[int]:
        """Submit a job and read its stream; the result is the bytes that it took."""
        buffer = StreamBuffer(self._wakeups)
        handle = self._engine.submit(job, buffer.push)
        return asyncio.run_coroutine_threadsafe(self._read(job, buffer, handle), self._loop)

    async def _read(self, job: GenerateJob, buffer: StreamBuffer, handle: Handle) -> int:
        writer = ReplyWriter(job.request_id, job.tokens, return_prompt_ids=False, reader=None)
        written = 0
        try:
            while True:
                for event in await buffer.take():
                    if isinstance(event, FailedEvent):
                        raise event.error
                    if isinstance(event, StartedEvent):
                        message = writer.started(event)
                    elif isinstance(event, FinishedEvent):
                        message = writer.finished(event, None)
                    else:
                        message = writer.delta(event)
                    written += len(message.SerializeToString())
                    if isinstance(event, FinishedEvent):
                        return written
        finally:
            handle.cancel()
