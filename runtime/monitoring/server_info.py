"""`/server_info` and `/detokenize` beside the metrics: how SGLang's tools find a server's KV events and read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MAX_BODY_BYTES = 2**20

_EVERY_ADDRESS = ("*", "0.0.0.0", "::")


class ServerInfo:
    """What a WSGI application answers beside what it is about.

    Args:
        endpoint: where the events are published, as bound.
        http_host: the address that this HTTP server listens on.
        decode: text of int32 token ids, special tokens kept.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        topic: str,
        block_size: int,
        http_host: str,
        vocab_size: int,
        decode: Callable[[npt.NDArray[np.int32]], str],
    ) -> None:
        address = urlsplit(endpoint)
        host = address.hostname or ""
        # A wildcard tells readers to use the host by which they got here, which is right where both listen on the same.
        self._info = {
            "page_size": block_size,
            "dp_size": 1,
            "kv_events": {
                "publisher": "zmq",
                "endpoint_host": "*" if host in (*_EVERY_ADDRESS, http_host) else host,
                "endpoint_port_base": address.port,
                "topic": topic,
                "block_size": block_size,
                "dp_size": 1,
            },
        }
        self._vocab_size = vocab_size
        self._decode = decode

    def beside(self, app: WSGIApplication) -> WSGIApplication:
        """Answer the two paths, and leave every other to `app`."""

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            asked = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            if asked == ("GET", "/server_info"):
                return _json(start_response, "200 OK", self._info)
            if asked == ("POST", "/detokenize"):
                return self._detokenize(environ, start_response)
            return app(environ, start_response)

        return answer

    def _detokenize(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            tokens = self._tokens(environ)
        except (ValueError, RecursionError) as error:
            return _json(start_response, "400 Bad Request", {"error": str(error)})
        return _json(start_response, "200 OK", {"text": self._decode(tokens)})

    def _tokens(self, environ: WSGIEnvironment) -> npt.NDArray[np.int32]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if not 0 < size <= MAX_BODY_BYTES:
            raise ValueError(f"the body has {size} bytes: it must have from 1 to {MAX_BODY_BYTES}")
        body = json.loads(environ["wsgi.input"].read(size))
        ids = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < self._vocab_size for i in ids):
            raise ValueError(f"tokens must be a list of token ids from 0 to {self._vocab_size - 1}")
        return np.array(ids, dtype=np.int32)


def _json(start_response: StartResponse, status: str, value: Any) -> list[bytes]:
    body = json.dumps(value).encode()
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
