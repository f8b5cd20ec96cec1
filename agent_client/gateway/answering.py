"""From calls to an HTTP answer: whole or streamed, the same way for every API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from ..errors import RadixloopError
from ..results import Delta, Finished, Generation, Started, TokenLogprob, Usage
from .explain_header import ASKED, asked, explanation
from .failures import FAULT, INTERNAL, ApiError, from_runtime
from .field_names import FieldNames
from .fleet import Calls, Running
from .frames import Frame, FrameResponse
from .json_answer import JsonAnswer
from .keeping import Wishes
from .runs import unless_gone

log = logging.getLogger(__name__)

# Told of the books of an answer that ended well.
Ended = Callable[[Sequence[Usage]], None]


class Writer(Protocol):
    """One API's words for what a request's calls say. `rank` is the place of the prompt in the request.

    `names` are what the body calls its fields.
    """

    @property
    def names(self) -> FieldNames: ...

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]: ...

    def begin(self, started: Sequence[Started]) -> Iterable[Frame]: ...

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterable[Frame]: ...

    def end(self, usages: Sequence[Usage]) -> Iterable[Frame]: ...

    def broken(self, error: ApiError) -> Frame:
        """The last event of a stream that fails after its headers are sent."""
        ...


@dataclass(frozen=True)
class Answer:
    """One request's way to its answer."""

    calls: Calls
    writer: Writer
    wishes: Wishes
    ended: Ended
    closed: Callable[[], None]

    async def respond(self, http: Request, *, stream: bool) -> Response:
        """Waits for what has to be known before the headers go, or for all of it.

        Raises ApiError, and ClientGone when the client left; the calls are cancelled then.
        """
        try:
            if stream:
                running = await unless_gone(http.receive, self._begin())
                return FrameResponse(self._frames(running), self._close(running), _explained(http, running.started))
            started, body = await unless_gone(http.receive, self._whole())
        except RadixloopError as error:
            self.closed()
            raise from_runtime(error, self.writer.names) from error
        except BaseException:
            self.closed()
            raise
        self.closed()
        return JsonAnswer(body, headers={**_explained(http, started), **self.wishes.headers()})

    def _close(self, running: Running) -> Callable[[], None]:
        def close() -> None:
            running.runs.cancel()
            self.closed()

        return close

    async def _begin(self) -> Running:
        running = await self.calls.begin()
        try:
            await self.wishes.begun(running)
        except BaseException:
            running.runs.cancel()
            raise
        return running

    async def _whole(self) -> tuple[Sequence[Started], dict[str, Any]]:
        running, generations = await self.calls.finish()
        await self.wishes.begun(running)
        await self.wishes.ended(running, generations)
        self.ended([generation.usage for generation in generations])
        steps = (step for generation in generations for choice in generation.choices for step in choice.logprobs)
        return running.started, self.writer.whole(generations, await _texts(running, steps))

    async def _frames(self, running: Running) -> AsyncIterator[Frame]:
        usages = [first.usage for first in running.started]
        try:
            for frame in self.writer.begin(running.started):
                yield frame
            async for rank, event in running.runs.events():
                if isinstance(event, Delta):
                    texts = await _texts(running, event.logprobs) if event.logprobs else {}
                    for frame in self.writer.delta(rank, event, texts):
                        yield frame
                elif isinstance(event, Finished):
                    usages[rank] = event.usage
            if self.wishes.any:
                await self.wishes.ended(running, await running.runs.results())
            self.ended(usages)
            for frame in self.writer.end(usages):
                yield frame
        except RadixloopError as error:
            running.member.failed(error)
            yield self.writer.broken(from_runtime(error, self.writer.names))
        except Exception:
            # The status is sent: without an event the client would take what came for a whole answer that broke off.
            log.exception("a stream failed")
            yield self.writer.broken(ApiError(INTERNAL, FAULT))


async def _texts(running: Running, steps: Iterable[TokenLogprob]) -> Mapping[int, str]:
    model = await running.member.model()
    return await running.member.texts.of(steps, model.fingerprint)


def _explained(http: Request, started: Sequence[Started]) -> dict[str, str]:
    return {ASKED: explanation(started)} if asked(http.headers) else {}
