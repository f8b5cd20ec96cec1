"""Exit status 0 while the runtime in this container serves, else 1 and a word on why: for a container's HEALTHCHECK."""

from __future__ import annotations

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 4.0


def main() -> int:
    """Ask the standard health service on the runtime's own port."""
    target = f"127.0.0.1:{os.environ.get('RADIX_RUNTIME_PORT', '50051')}"
    with grpc.insecure_channel(target) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service="")
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{target}: {error.code().name} {error.details()}")
            return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(f"{target}: {status}")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
