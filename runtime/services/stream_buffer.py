"""Carries one request's events from the engine thread to its stream without ever making the engine wait."""

from __future__ import annotations

import asyncio
import threading

from runtime.events import DeltaEvent, Event
from runtime.services.wakeups import WakeUps


class StreamBuffer:
    """Events of one request in order, where the deltas of a choice that wait together become one.

    A reader that stalls therefore costs at most the memory of the request's output, and `push` never waits.
    """

    def __init__(self, wakeups: WakeUps) -> None:
        """`wakeups` are of the reader's loop. Somebody flushes them after `push`."""
        self._wakeups = wakeups
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._wake = asyncio.Event()

    def push(self, events: list[Event]) -> None:
        """Add events; any thread."""
        with self._lock:
            wake = not self._waiting
            self._waiting += events
        if wake:
            self._wakeups.add(self._wake)

    async def take(self) -> list[Event]:
        """Everything since the last take, at least one event; the loop's thread only."""
        await self._wake.wait()
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._wake.clear()
        return _joined(waiting) if len(waiting) > 1 else waiting


def _joined(events: list[Event]) -> list[Event]:
    """The events with all deltas of a choice as one, in the place of the first."""
    joined: list[Event] = []
    deltas: dict[int, list[DeltaEvent]] = {}
    places: dict[int, int] = {}
    for event in events:
        if isinstance(event, DeltaEvent):
            if event.index not in places:
                places[event.index] = len(joined)
                deltas[event.index] = []
                joined.append(event)
            deltas[event.index].append(event)
        else:
            joined.append(event)
    for index, parts in deltas.items():
        if len(parts) > 1:
            joined[places[index]] = _one(parts)
    return joined


def _one(parts: list[DeltaEvent]) -> DeltaEvent:
    last = parts[-1]
    return DeltaEvent(
        index=last.index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        logprobs=tuple(step for part in parts for step in part.logprobs),
        finish_reason=last.finish_reason,
        stopped_by=last.stopped_by,
    )
