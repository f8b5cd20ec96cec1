"""Another server's HTTP stream as the events that our own client gives."""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx

from ..errors import Internal, InvalidArgument, RadixloopError, Unavailable
from ..generate_options import GenerateOptions
from ..prompts import Prompt
from ..results import Delta, Event, Finished, Started, Timing, Usage
from .wire import Books, Wire

if TYPE_CHECKING:
    from typing_extensions import Unpack

CONNECT_TIMEOUT_S = 10.0
MESSAGE_SHOWN = 500


class PeerUnavailable(Unavailable):
    """Another server than a runtime of ours does not answer."""


class HttpTarget:
    """Streams of one server. `name` is the target as the user wrote it and stands in every error.

    `counts_cache` turns True with the first call whose books told how much of its prompt was cached.
    """

    def __init__(self, name: str, http: httpx.AsyncClient, wire: Wire) -> None:
        self.name = name
        self.counts_cache = False
        self._http = http
        self._wire = wire

    @asynccontextmanager
    async def stream(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[AsyncIterator[Event], None]:
        """One call over token ids. Of the options, `max_tokens`, `ignore_eos` and `bypass_cache` count.

        Raises PeerUnavailable, InvalidArgument for what the server refuses, and Internal for an answer of a shape
        that its API does not have.
        """
        ids = cast("array[int]", prompt)
        body = self._wire.body(
            ids,
            max_tokens=options["max_tokens"],
            ignore_eos=options.get("ignore_eos", False),
            use_cache=not options.get("bypass_cache", False),
        )
        with http_errors(self.name):
            async with self._http.stream("POST", self._wire.path, json=body) as response:
                await refuse_failure(self.name, response)
                yield self._events(response, ids)

    async def _events(self, response: httpx.Response, prompt: array[int]) -> AsyncGenerator[Event, None]:
        yield Started("", Usage(prompt_tokens=len(prompt)), prompt)
        books: Books | None = None
        async for chunk in self._chunks(response):
            try:
                piece = self._wire.piece(chunk)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                shown = json.dumps(chunk)[:MESSAGE_SHOWN]
                raise Internal(f"{self.name}: no chunk of this API ({error!r}): {shown}") from None
            if piece.token_ids:
                yield Delta(0, "", piece.token_ids)
            books = piece.books or books
        yield Finished(self._usage(books, len(prompt)), Timing())

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
        """The data of server-sent events up to `[DONE]`. Raises Internal for an error sent among them."""
        async for line in response.aiter_lines():
            name, _, data = line.partition(":")
            data = data.strip()
            if name not in ("data", "error") or data == "[DONE]":
                continue
            try:
                chunk = json.loads(data)
            except ValueError:
                raise Internal(f"{self.name}: no JSON in its stream: {data[:MESSAGE_SHOWN]}") from None
            if name == "error" or not isinstance(chunk, dict) or chunk.get("error"):
                raise Internal(f"{self.name}: {data[:MESSAGE_SHOWN]}")
            yield chunk

    def _usage(self, books: Books | None, sent: int) -> Usage:
        if books is None:
            raise Internal(f"{self.name}: the stream ended without usage, so nothing can be said about its cache")
        if books.prompt_tokens != sent:
            raise Internal(f"{self.name}: it counted {books.prompt_tokens} prompt tokens where {sent} were sent")
        self.counts_cache = self.counts_cache or books.cached_tokens is not None
        cached = books.cached_tokens or 0
        return Usage(sent, cached, books.output_tokens, sent - cached)


@contextmanager
def http_errors(name: str) -> Iterator[None]:
    """Turns what httpx raises in the block into the client's own error, with the target's name."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PeerUnavailable(f"{name}: {str(error) or type(error).__name__}") from None


async def refuse_failure(name: str, response: httpx.Response) -> None:
    """Raises the error that a status other than 2xx stands for, with the server's words."""
    if response.is_success:
        return
    words = (await response.aread()).decode(errors="replace").strip()
    message = f"{name}: status {response.status_code}: {_message(words)[:MESSAGE_SHOWN]}"
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise PeerUnavailable(message)
    if response.is_client_error:
        raise InvalidArgument(message)
    raise RadixloopError(message, code="INTERNAL")


def _message(words: str) -> str:
    """The message in `{"error": {"message": …}}`, or the body as it is."""
    try:
        return str(json.loads(words)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return words or "no reason given"
