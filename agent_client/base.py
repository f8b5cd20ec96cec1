"""What the blocking and the asyncio client share: settings, and the decision to try again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from radixloop.v1 import cache_pb2, common_pb2, inference_pb2

from .access import Access
from .channel import Deadline, Stubs, channel_options
from .errors import RadixloopError, Unavailable
from .folding import Fold, event_from_proto
from .generate_options import namespace
from .results import Event, Finished
from .retry import RetryPolicy, Safety
from .target import default_target

HEALTH_POLL_S = 0.2
HEALTH_TIMEOUT_S = 5.0


class ClientBase:
    """One channel to one runtime, and what every call over it carries."""

    # The gRPC API that opens channels: `grpc` or `grpc.aio`.
    _api: ClassVar[Any]

    def __init__(
        self,
        target: str | None = None,
        *,
        salt: str | None = None,
        adapter: str | None = None,
        timeout_s: float | None = None,
        retry: RetryPolicy | None = None,
        access: Access | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        options: Sequence[tuple[str, Any]] | None = None,
    ) -> None:
        self.target = target or default_target()
        self._namespace = namespace(salt, adapter)
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy()
        access = Access.from_environment() if access is None else access
        self._metadata = (*metadata, *access.metadata())
        opened, credentials = channel_options(options), access.credentials()
        self._channel: Any = (
            self._api.insecure_channel(self.target, options=opened)
            if credentials is None
            else self._api.secure_channel(self.target, credentials, options=opened)
        )
        self._stubs = Stubs(self._channel)

    def _session_namespace(self, salt: str | None, adapter: str | None) -> common_pb2.Namespace:
        space = common_pb2.Namespace()
        space.CopyFrom(self._namespace)
        space.MergeFrom(namespace(salt, adapter))
        return space

    def _nodes_request(self, all_namespaces: bool, head_tokens: int | None) -> cache_pb2.ListNodesRequest:
        space = None if all_namespaces else self._namespace
        return cache_pb2.ListNodesRequest(namespace=space, head_tokens=head_tokens)

    def _delay_or_raise(self, error: RadixloopError, attempt: int, safety: Safety, deadline: Deadline) -> float:
        """Seconds to wait before the next attempt; raises `error` when there is to be none."""
        delay = self._retry.delay_s(error, attempt, safety)
        if delay is None or not deadline.allows(delay):
            raise error
        return delay

    def _not_ready(self, timeout_s: float, reason: str) -> Unavailable:
        return Unavailable(f"{self.target} does not serve after {timeout_s:g} s: {reason}")


class StreamState:
    """What a stream of either client keeps: the request, what arrived, and whether it may start over."""

    def __init__(
        self,
        client: ClientBase,
        request: inference_pb2.GenerateRequest,
        timeout_s: float | None,
        safety: Safety,
        on_finished: Callable[[Finished], None] | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._safety = safety
        self._deadline = Deadline(client._timeout_s if timeout_s is None else timeout_s)
        self._on_finished = on_finished
        self._fold = Fold()
        self._attempt = 1
        self._cancelled = False
        self._call = self._start()

    def _start(self) -> Any:
        generate = self._client._stubs.Inference.Generate
        return generate(self._request, timeout=self._deadline.left_s(), metadata=self._client._metadata)

    def cancel(self) -> None:
        """Stops the work in the runtime. Safe at any time."""
        self._cancelled = True
        self._call.cancel()

    def _receive(self, message: inference_pb2.GenerateResponse) -> Event | None:
        event = event_from_proto(message)
        if event is not None:
            self._fold.add(event)
            if isinstance(event, Finished) and self._on_finished is not None:
                self._on_finished(event)
        return event

    def _restart_delay(self, error: RadixloopError) -> float:
        """Only a stream that has not begun may start over: raises `error` otherwise."""
        if self._fold.started is not None or self._cancelled:
            raise error
        delay = self._client._delay_or_raise(error, self._attempt, self._safety, self._deadline)
        self._attempt += 1
        return delay


class SessionState:
    """What a session of either client knows of itself."""

    def __init__(self, client: Any, session_id: str, tokens: int, idle_timeout_s: float) -> None:
        self._client = client
        self.id = session_id
        self.tokens = tokens
        self.idle_timeout_s = idle_timeout_s

    def _turn_finished(self, finished: Finished) -> None:
        if finished.session_tokens is not None:
            self.tokens = finished.session_tokens
