"""The gRPC side of a runtime: services, health, reflection and the channel's limits."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from radixloop.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
)

from runtime.access.key_guard import KeyFile, KeyGuard
from runtime.access.server_tls import ServerTls
from runtime.services.cache import CacheService
from runtime.services.decode_guard import DecodeGuard
from runtime.services.inference import InferenceService
from runtime.services.service_context import ServiceContext
from runtime.services.sessions import SessionsService
from runtime.settings import BadConfig
from runtime.vllm_engine import availability

MAX_MESSAGE_BYTES = 64 * 2**20

# Clients may ping as often as they like, also while no call runs: a long silent prefill must not end in GOAWAY
# "too_many_pings". The server pings too, so that a client whose machine vanished is noticed and its work stopped.
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Two runtimes on one port would share its calls at random; a second one is to be told that the port is taken.
    ("grpc.so_reuseport", 0),
)

SERVICE_NAMES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in ((inference_pb2, "Inference"), (sessions_pb2, "Sessions"), (cache_pb2, "Cache"))
)


# The package serves the alpha name only. The v1 messages are the same on the wire, and newer tools ask for v1 first.
_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


class GrpcServer:
    """A grpc.aio server bound to its port from the start, with services added when the model is there.

    Attributes:
        port: the real one where port 0 was asked for.
        target: what a client on this machine connects to.
    """

    def __init__(self, host: str, port: int, *, tls: ServerTls | None = None, keys: KeyFile | None = None) -> None:
        guards = [DecodeGuard()] if keys is None else [KeyGuard(keys), DecodeGuard()]
        self._server = grpc.aio.server(interceptors=guards, options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        self._names = SERVICE_NAMES
        self._serving = False
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, tls.credentials())
        except RuntimeError:
            raise BadConfig("port", f"{address} cannot be bound: in use, or no address of this machine") from None
        # Listening everywhere is no place to connect to; on this machine the loopback is.
        reachable = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
        self.target = f"[{reachable}]:{self.port}" if ":" in reachable else f"{reachable}:{self.port}"

    async def start(self, shared: ServiceContext) -> None:
        """Answer calls. Health says NOT_SERVING until `set_serving`. Raises BadConfig."""
        inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(shared), self._server)  # type: ignore[no-untyped-call]
        sessions_pb2_grpc.add_SessionsServicer_to_server(SessionsService(shared), self._server)  # type: ignore[no-untyped-call]
        cache_pb2_grpc.add_CacheServicer_to_server(CacheService(shared), self._server)  # type: ignore[no-untyped-call]
        if availability.served(shared.config.vllm_engine):
            self._names += (add_vllm_engine(self._server, shared, lambda: self._serving),)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _add_reflection(self._server, self._names)
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Set the health of every service and of the server as a whole ("")."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        self._serving = serving
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds to write out what they have, end them. Idempotent."""
        await self._server.stop(grace_s)


def add_vllm_engine(server: grpc.aio.Server, shared: ServiceContext, serving: Callable[[], bool]) -> str:
    """Serve VllmEngine too; its full name."""
    # Its stubs are an extra.
    from smg_grpc_proto import vllm_engine_pb2_grpc

    from runtime.vllm_engine.service import SERVICE_NAME, VllmEngineService

    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(VllmEngineService(shared, serving), server)
    return SERVICE_NAME


def _add_reflection(server: grpc.aio.Server, services: tuple[str, ...]) -> None:
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(_REFLECTION_V1, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handlers,))
