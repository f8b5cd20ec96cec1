"""From calls that run to an HTTP answer: whole or streamed, the same way for every API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import RadixloopError
from ..results import Delta, Finished, Generation, Started, TokenLogprob, Usage
from .explain_header import ASKED, explanation
from .failures import ApiError, from_runtime
from .frames import Frame, FrameResponse
from .runs import Runs, unless_gone

# Texts of the tokens in some steps, by id.
Texts = Callable[[Iterable[TokenLogprob]], Awaitable[Mapping[int, str]]]
# Told of the books of an answer that ended well.
Ended = Callable[[Sequence[Usage]], None]


class Writer(Protocol):
    """One API's words for what a request's calls say. `rank` is the place of the prompt in the request."""

    def whole(self, generations: Sequence[Generation], texts: Mapping[int, str]) -> dict[str, Any]: ...

    def begin(self, started: Sequence[Started]) -> Iterable[Frame]: ...

    def delta(self, rank: int, piece: Delta, texts: Mapping[int, str]) -> Iterable[Frame]: ...

    def end(self, usages: Sequence[Usage]) -> Iterable[Frame]: ...

    def broken(self, error: ApiError) -> Frame:
        """The last event of a stream that fails after its headers are sent."""
        ...


async def answer(http: Request, runs: Runs, writer: Writer, texts: Texts, *, stream: bool, ended: Ended) -> Response:
    """Waits for what has to be known before the headers go, or for all of it; `ended` is told the books.

    Raises the runtime's error, and ClientGone when the client left; the calls are cancelled then.
    """
    try:
        started = await unless_gone(http.receive, runs.start())
        headers = {ASKED: explanation(started)} if http.headers.get(ASKED) == "1" else {}
        if stream:
            return FrameResponse(_frames(runs, writer, started, texts, ended), runs.cancel, headers)
        body = await unless_gone(http.receive, _whole(runs, writer, texts, ended))
        return JSONResponse(body, headers=headers)
    except BaseException:
        runs.cancel()
        raise


async def _whole(runs: Runs, writer: Writer, texts: Texts, ended: Ended) -> dict[str, Any]:
    generations = await runs.results()
    ended([generation.usage for generation in generations])
    steps = (step for generation in generations for choice in generation.choices for step in choice.logprobs)
    return writer.whole(generations, await texts(steps))


async def _frames(
    runs: Runs,
    writer: Writer,
    started: Sequence[Started],
    texts: Texts,
    ended: Ended,
) -> AsyncIterator[Frame]:
    usages = [first.usage for first in started]
    try:
        for frame in writer.begin(started):
            yield frame
        async for rank, event in runs.events():
            if isinstance(event, Delta):
                for frame in writer.delta(rank, event, await texts(event.logprobs)):
                    yield frame
            elif isinstance(event, Finished):
                usages[rank] = event.usage
        ended(usages)
        for frame in writer.end(usages):
            yield frame
    except RadixloopError as error:
        yield writer.broken(from_runtime(error))
