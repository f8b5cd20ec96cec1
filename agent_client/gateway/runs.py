"""The calls to the runtime that one HTTP request makes, and their end when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from ..aio import AsyncGenerationStream
from ..errors import Internal
from ..results import Event, Generation, Started

T = TypeVar("T")


class Runs:
    """Streams that run side by side. `cancel` ends their work in the runtime; safe at any time."""

    def __init__(self) -> None:
        self._streams: list[AsyncGenerationStream] = []

    def add(self, stream: AsyncGenerationStream) -> None:
        """One more, before `start`."""
        self._streams.append(stream)

    def cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()

    async def start(self) -> list[Started]:
        """Waits until each was admitted. Raises the runtime's error for the first that was not."""
        return await asyncio.gather(*map(_started, self._streams))

    async def results(self) -> list[Generation]:
        """Everything that they wrote."""
        return await asyncio.gather(*(stream.result() for stream in self._streams))

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """What they say after `start`, as it arrives, with the rank of the stream that said it."""
        if len(self._streams) == 1:
            async for event in self._streams[0]:
                yield 0, event
            return
        waiting = {asyncio.ensure_future(anext(stream)): rank for rank, stream in enumerate(self._streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda ended: waiting[ended]):
                    rank = waiting.pop(task)
                    try:
                        event = task.result()
                    except StopAsyncIteration:
                        continue
                    yield rank, event
                    waiting[asyncio.ensure_future(anext(self._streams[rank]))] = rank
        finally:
            for task in waiting:
                task.cancel()


async def _started(stream: AsyncGenerationStream) -> Started:
    event = await anext(stream, None)
    if not isinstance(event, Started):
        raise Internal("the stream did not begin with its books")
    return event


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Does `work`, and cancels it as soon as the client closes the connection. Raises ClientGone then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
