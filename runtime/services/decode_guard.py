"""A request that is no valid message is the caller's mistake; gRPC by itself answers UNKNOWN and logs a traceback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError


@dataclass(frozen=True)
class _Broken:
    reason: str


class DecodeGuard(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to bytes that do not decode, such as a string that is not UTF-8."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        decode = _guarded(handler.request_deserializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _checked(handler.unary_stream), decode, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(_checked(handler.unary_unary), decode, handler.response_serializer)


def _guarded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def attempt(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return _Broken(str(error))

    return attempt


def _checked(answer: Any) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if isinstance(request, _Broken):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request does not decode: {request.reason}")
        return await answer(request, context)

    return call
