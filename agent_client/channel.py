"""What both clients' channels have in common: options, stubs, deadlines, and the health check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from google.protobuf import wrappers_pb2
from radixloop.v1 import cache_pb2_grpc, inference_pb2_grpc, sessions_pb2_grpc

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
HEALTH_METHOD = "/grpc.health.v1.Health/Check"

# A ping every 30 s keeps the connection through a long silent prefill; more often, servers answer "too many pings".
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)

_HEALTH_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def channel_options(extra: Sequence[tuple[str, Any]] | None) -> list[tuple[str, Any]]:
    """The house's options with the caller's on top."""
    return list({**dict(CHANNEL_OPTIONS), **dict(extra or ())}.items())


class Stubs:
    """The three services and the health check over one channel (sync or asyncio)."""

    def __init__(self, channel: Any) -> None:
        self.Inference = inference_pb2_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        self.Sessions = sessions_pb2_grpc.SessionsStub(channel)  # type: ignore[no-untyped-call]
        self.Cache = cache_pb2_grpc.CacheStub(channel)  # type: ignore[no-untyped-call]
        # The health messages hold one field each, numbered 1, of the same wire types as these wrappers,
        # so no further package is needed to speak to the health service.
        self.health = channel.unary_unary(
            HEALTH_METHOD,
            request_serializer=wrappers_pb2.StringValue.SerializeToString,
            response_deserializer=wrappers_pb2.Int32Value.FromString,
        )


def health_request(service: str) -> Any:
    return wrappers_pb2.StringValue(value=service)


def health_name(response: Any) -> str:
    return _HEALTH_NAMES.get(response.value, "UNKNOWN")


class Deadline:
    """One time limit over all attempts of a call."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        """Seconds left, never negative; None: no limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def allows(self, delay_s: float) -> bool:
        left = self.left_s()
        return left is None or delay_s < left
