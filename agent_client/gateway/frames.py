"""Server-sent events: the stream of an answer, ended when its reader is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .json_answer import json_text
from .runs import ClientGone, unless_gone


@dataclass(frozen=True)
class Frame:
    """One event: its data, and its name where the API gives events names."""

    data: Mapping[str, Any] | str
    event: str | None = None

    def encoded(self) -> bytes:
        text = self.data if isinstance(self.data, str) else json_text(self.data)
        body = f"data: {text}\n\n".encode()
        return body if self.event is None else b"event: " + self.event.encode() + b"\n" + body


class FrameResponse(Response):
    """Sends frames as they come. `close` runs however it ends: at the last frame, an error, or a client that leaves."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[Frame], close: Callable[[], None], headers: Mapping[str, str]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._frames = frames
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A write alone would not tell that the client left: before a long prefill's first token there is none.
            await unless_gone(receive, self._send(send))
        except ClientGone:
            pass
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._frames) as frames:  # type: ignore[type-var]
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame.encoded(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
