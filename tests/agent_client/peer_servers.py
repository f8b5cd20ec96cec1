"""Servers of other makes with no model: they speak the HTTP dialects, answer like the toy runtime, and cache alike.

The chunks have the fields and the order of those that vLLM 0.32 and llama.cpp's server (build 11434) sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .toy_runtime import shared


@dataclass
class PeerServer:
    """`block` tokens are the least that its cache shares. What the tests switch off or break is in the other fields."""

    block: int = 1
    tells_ids: bool = True
    tells_usage: bool = True
    tells_cached: bool = True
    added_tokens: int = 0
    refusal: tuple[int, str] | None = None
    raw_chunks: list[str] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._known: list[bytes] = []
        self._lock = threading.Lock()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._json(200, {"object": "list", "data": [{"id": "toy", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                peer.bodies.append(body)
                if peer.refusal is not None:
                    status, message = peer.refusal
                    self._json(status, {"error": {"message": message, "code": status}})
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for chunk in peer.chunks(self.path, body):
                    self.wfile.write(chunk.encode() + b"\n\n")

            def _json(self, status: int, answer: dict[str, Any]) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def chunks(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        if self.raw_chunks is not None:
            yield from self.raw_chunks
            return
        prompt = bytes(body["prompt"])
        with self._lock:
            cached = min(max((shared(prompt, other) for other in self._known), default=0), len(prompt) - 1)
            cached = cached // self.block * self.block if body.get("cache_prompt", True) else 0
            self._known.append(prompt)
        tokens = [97 + (len(prompt) + i) % 26 for i in range(body.get("max_tokens") or body.get("n_predict"))]
        dialect = {"/v1/completions": self._openai, "/completion": self._llama}[path]
        yield from dialect(prompt, tokens, cached)
        with self._lock:
            self._known.append((prompt + bytes(tokens))[:-1])

    def _openai(self, prompt: bytes, tokens: list[int], cached: int) -> Iterator[str]:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "toy"}
        for i, token in enumerate(tokens):
            choice: dict[str, Any] = {"index": 0, "text": chr(token), "logprobs": None}
            choice["finish_reason"] = "length" if i == len(tokens) - 1 else None
            if self.tells_ids:
                choice["token_ids"] = [token]
            yield _data({**head, "choices": [choice]})
        if self.tells_usage:
            count = len(prompt) + self.added_tokens
            usage = {"prompt_tokens": count, "total_tokens": count + len(tokens), "completion_tokens": len(tokens)}
            details = {"cached_tokens": cached} if self.tells_cached else None
            yield _data({**head, "choices": [], "usage": {**usage, "prompt_tokens_details": details}})
        yield "data: [DONE]"

    def _llama(self, prompt: bytes, tokens: list[int], cached: int) -> Iterator[str]:
        count = len(prompt) + self.added_tokens
        for i, token in enumerate(tokens, 1):
            piece = {"index": 0, "content": chr(token), "tokens": [token], "stop": False, "id_slot": 0}
            yield _data({**piece, "tokens_predicted": i, "tokens_evaluated": count})
        timings = {"cache_n": cached, "prompt_n": count - cached, "predicted_n": len(tokens)}
        last = {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": "limit", "timings": timings}
        cache = {"tokens_evaluated": count, "tokens_cached": count + len(tokens) - 1}
        yield _data({**last, "tokens_predicted": len(tokens), **cache})


def _data(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}"
