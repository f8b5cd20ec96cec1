"""What the gateway counts, for Prometheus. The runtime's own metrics are at the runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..results import Usage
from .failures import CLIENT_CLOSED


class GatewayMetrics:
    """Counters in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "radixloop_gateway_requests_total",
            "HTTP requests answered, by route and status; 499: the client left before an answer began.",
            ("route", "status"),
            registry=self._registry,
        )
        self._running = Gauge(
            "radixloop_gateway_running_requests",
            "HTTP requests whose answer has not ended.",
            registry=self._registry,
        )
        self._tokens = {
            name: Counter(f"radixloop_gateway_{name}_tokens_total", words, registry=self._registry)
            for name, words in (
                ("prompt", "Prompt tokens of answers that ended well."),
                ("cached", "Of these, found in the cache."),
                ("output", "Tokens written in answers that ended well."),
            )
        }

    def around(self, app: ASGIApp, paths: Collection[str]) -> ASGIApp:
        """`app`, with its HTTP requests counted by these paths; any other counts as `other`."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            status = CLIENT_CLOSED

            async def noted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            route = scope["path"] if scope["path"] in paths else "other"
            with self._running.track_inprogress():
                try:
                    await app(scope, receive, noted)
                finally:
                    self._requests.labels(route, str(status)).inc()
            return None

        return counted

    def ended(self, usages: Iterable[Usage]) -> None:
        """An answer ended well; the books of its calls."""
        for usage in usages:
            self._tokens["prompt"].inc(usage.prompt_tokens)
            self._tokens["cached"].inc(usage.cached_tokens)
            self._tokens["output"].inc(usage.output_tokens)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
