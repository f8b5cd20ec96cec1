"""Carries one request's events from the engine thread to its stream without ever making the engine wait."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace

from runtime.events import DeltaEvent, Event
from runtime.sampler import SampledToken


@dataclass
class _Gathered:
    """Deltas of one choice that the reader has not taken yet; joined when it does."""

    last: DeltaEvent
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[SampledToken] = field(default_factory=list)

    def add(self, delta: DeltaEvent) -> None:
        self.last = delta
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)

    def joined(self) -> DeltaEvent:
        return replace(
            self.last, text="".join(self.texts), token_ids=tuple(self.token_ids), logprobs=tuple(self.logprobs)
        )


class StreamBuffer:
    """Events of one request in order, where the deltas of a choice that wait together become one.

    A reader that stalls therefore costs at most the memory of the request's output, and `push` never waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[Event | _Gathered] = []
        self._open: dict[int, _Gathered] = {}
        self._wake = asyncio.Event()
        self._woken = False

    def push(self, events: list[Event]) -> None:
        """Add events; any thread."""
        with self._lock:
            for event in events:
                self._add(event)
            wake = not self._woken
            self._woken = True
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                # The loop is closed: the process is going down and nobody reads this stream any more.
                return

    async def take(self) -> list[Event]:
        """Everything since the last take, at least one event; the loop's thread only."""
        await self._wake.wait()
        with self._lock:
            waiting, self._waiting, self._open = self._waiting, [], {}
            self._woken = False
            self._wake.clear()
        return [item.joined() if isinstance(item, _Gathered) else item for item in waiting]

    def _add(self, event: Event) -> None:
        if not isinstance(event, DeltaEvent):
            self._waiting.append(event)
            return
        gathered = self._open.get(event.index)
        if gathered is None:
            gathered = self._open[event.index] = _Gathered(event)
            self._waiting.append(gathered)
        gathered.add(event)
