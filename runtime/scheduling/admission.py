"""The door of the engine: what can never run is refused at once, and so is what would wait too long."""

from __future__ import annotations

import threading

import numpy as np

from runtime.errors import InvalidRequest, QueueFull, RequestTooLarge, ShuttingDown
from runtime.request import GenerateJob

DEFAULT_MAX_TOKENS = 256
_SMOOTHING = 0.2


class AdmissionGate:
    """Checks jobs and counts those that wait. Any thread may call it."""

    def __init__(self, *, vocab_size: int, context_length: int, pool_tokens: int, max_queue: int) -> None:
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._pool_tokens = pool_tokens
        self._max_queue = max_queue
        self._lock = threading.Lock()
        self._queued = 0
        self._closed = False
        self._mean_duration_s = 1.0

    def close(self) -> None:
        """Refuse everything from now on."""
        with self._lock:
            self._closed = True

    def admit(self, job: GenerateJob) -> int:
        """Let a job into the queue.

        Returns:
            How many tokens it may generate.

        Raises:
            InvalidRequest, RequestTooLarge, QueueFull, ShuttingDown.
        """
        max_tokens = self._check(job)
        with self._lock:
            if self._closed:
                raise ShuttingDown("the runtime is shutting down and takes no new requests")
            if self._queued >= self._max_queue:
                raise QueueFull(self._max_queue, self._mean_duration_s)
            self._queued += 1
        return max_tokens

    def admitted(self) -> None:
        """A job left the queue, to run or because it ended."""
        with self._lock:
            self._queued -= 1

    def note_duration(self, seconds: float) -> None:
        """A request took that long: the hint for those that are turned away."""
        with self._lock:
            self._mean_duration_s += _SMOOTHING * (seconds - self._mean_duration_s)

    def _check(self, job: GenerateJob) -> int:
        prompt = len(job.tokens)
        if prompt == 0:
            raise InvalidRequest("prompt", "0 tokens", "must hold at least 1 token")
        low, high = int(np.min(job.tokens)), int(np.max(job.tokens))
        if low < 0 or high >= self._vocab_size:
            bad = low if low < 0 else high
            raise InvalidRequest("prompt", f"token id {bad}", f"token ids go from 0 to {self._vocab_size - 1}")
        job.sampling.validate(self._vocab_size)
        wanted = job.sampling.max_tokens
        if job.prefill_only:
            wanted = 0
        room = self._context_length - prompt
        if room < (0 if job.prefill_only else 1):
            limit = f"at most {self._context_length - 1}: the context ends at {self._context_length} tokens"
            raise InvalidRequest("prompt", f"{prompt} tokens", limit)
        # A pool that has not even room for the prompt is told with the prompt's size, below.
        fits = min(room, max(1, self._pool_tokens - prompt + 1))
        if wanted is None:
            wanted = min(DEFAULT_MAX_TOKENS, fits)
        elif job.sampling.clip_max_tokens:
            wanted = min(wanted, fits)
        elif wanted > room:
            limit = f"at most {room} after a prompt of {prompt} tokens: the context ends at {self._context_length}"
            raise InvalidRequest("sampling.max_tokens", wanted, limit)
        # The last token's KV is never computed.
        needed = prompt + max(0, wanted - 1)
        if needed > self._pool_tokens:
            raise RequestTooLarge(needed, self._pool_tokens)
        return wanted
