"""Asks every call for a key, and says whose it is."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health
from radixloop.tenants import OPERATOR, BadKeyFile, Keys, bearer_of, read_keys

from runtime.access.caller import Caller, set_caller
from runtime.settings import BadConfig

log = logging.getLogger(__name__)

# Probes carry no keys, and learn no more than whether the runtime serves.
_OPEN = f"/{health.SERVICE_NAME}/"

# What a tenant may call: each of these looks at nothing but what is the caller's, or the same for everybody. All the
# rest, of services that are not named here too, is for operators.
_INFERENCE = ("Generate", "Tokenize", "Detokenize", "GetModelInfo")
_SESSIONS = ("Open", "Fork", "Truncate", "Hold", "Close")
_CACHE = ("Explain", "Lease", "RenewLease", "ReleaseLease", "ListLeases", "ListNodes", "Flush", "Warm")
TENANT_METHODS = frozenset(
    f"/radixloop.v1.{service}/{method}"
    for service, methods in (("Inference", _INFERENCE), ("Sessions", _SESSIONS), ("Cache", _CACHE))
    for method in methods
) | {f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")}

_LOOK_EVERY_S = 1.0

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class KeyFile:
    """The keys in a file, read again when it changes: keys come and go, the cache stays. Raises BadConfig at first."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = self._look()
        self._looked_at = time.monotonic()
        try:
            self._keys = read_keys(file)
        except BadKeyFile as error:
            raise BadConfig("keys", str(error)) from None

    def current(self) -> Keys:
        """The keys that hold now. A file that cannot be read leaves those from before in force."""
        now = time.monotonic()
        if now >= self._looked_at + _LOOK_EVERY_S:
            self._looked_at = now
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._keys = read_keys(self._file)
                    log.info("the keys in %s changed", self._file)
                except BadKeyFile as error:
                    log.error("%s; the keys from before stay in force", error)
        return self._keys

    def _look(self) -> object:
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class KeyGuard(grpc.aio.ServerInterceptor):
    """Answers UNAUTHENTICATED to calls without a key of the file, PERMISSION_DENIED to what a tenant may not call."""

    def __init__(self, keys: KeyFile) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = str(handler_call_details.method)
        if method.startswith(_OPEN):
            return await continuation(handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata or ())
        header = metadata.get("authorization", "")
        key = bearer_of(header) if isinstance(header, str) else ""
        holder = self._keys.current().holder_of(key) if key else None
        if holder is None:
            why = "this key is unknown" if key else "a key is needed, as the metadata authorization: Bearer KEY"
            return _refusal(grpc.StatusCode.UNAUTHENTICATED, why)
        if holder.tenant != OPERATOR and method not in TENANT_METHODS:
            why = f"{method[1:]} is about all tenants: it takes an operator's key (a line '* KEY' of the file of keys)"
            return _refusal(grpc.StatusCode.PERMISSION_DENIED, why)
        set_caller(Caller(None if holder.tenant == OPERATOR else holder.tenant, holder.max_priority))
        return await continuation(handler_call_details)


def _refusal(code: grpc.StatusCode, why: str) -> Handler:
    async def refuse(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, why)

    # Of any kind of method: a stream is refused before a byte of the request is read.
    return grpc.stream_stream_rpc_method_handler(refuse)
