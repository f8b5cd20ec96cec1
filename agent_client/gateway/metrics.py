"""What the gateway counts, for Prometheus. The runtime's own metrics are at the runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..results import Usage
from .failures import CLIENT_CLOSED
from .fleet import Fleet
from .keeping import Result
from .keeping.hint_actions import KINDS


class GatewayMetrics:
    """Counters in a registry of their own."""

    def __init__(self, fleet: Fleet) -> None:
        self._registry = CollectorRegistry()
        self._fleet = fleet
        self._up = Gauge(
            "radixloop_gateway_runtime_up",
            "1 for a runtime that calls are sent to, 0 for one that is left out.",
            ("runtime",),
            registry=self._registry,
        )
        self._leases = Counter(
            "radixloop_gateway_leases_total",
            "Leases that requests asked for, by cache_control or kv_hints: taken, renewed, or refused by the runtime.",
            ("result",),
            registry=self._registry,
        )
        self._hints = Counter(
            "radixloop_gateway_kv_hints_total",
            "Actions of kv_hints by kind and by what became of them.",
            ("action", "result"),
            registry=self._registry,
        )
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

    def leased(self, outcome: str) -> None:
        """A lease was asked for."""
        self._leases.labels(outcome).inc()

    def hinted(self, result: Result) -> None:
        """An action was answered."""
        known = {action for action, _ in KINDS}
        self._hints.labels(result.action_type if result.action_type in known else "other", result.status).inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        for member in self._fleet.members:
            self._up.labels(member.target).set(member.up)
        return generate_latest(self._registry)
