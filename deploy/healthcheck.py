"""Exit status 0 while the runtime in this container serves, else 1 and a word on why: for a container's HEALTHCHECK."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 4.0
_HOST = "127.0.0.1"


def main() -> int:
    """Ask the standard health service on the runtime's own port, with TLS where its variables name a certificate."""
    port = int(os.environ.get("RADIX_RUNTIME_PORT", "50051"))
    cert, key = os.environ.get("RADIX_RUNTIME_TLS_CERT"), os.environ.get("RADIX_RUNTIME_TLS_KEY")
    target = f"{_HOST}:{port}"
    try:
        with _channel(port, cert, key) as channel:
            request = health_pb2.HealthCheckRequest(service="")
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        print(f"{target}: {error.code().name} {error.details()}")
        return 1
    except OSError as error:
        print(f"{target}: {error}")
        return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(f"{target}: {status}")
    return 0 if status == "SERVING" else 1


def _channel(port: int, cert: str | None, key: str | None) -> grpc.Channel:
    if cert is None or key is None:
        return grpc.insecure_channel(f"{_HOST}:{port}")
    pem = Path(cert).read_bytes()
    # The runtime's own certificate is all that has to be trusted, and its own name the one to ask for. Where callers
    # must show a certificate it is shown too, which serves if the same authority signs both.
    credentials = grpc.ssl_channel_credentials(pem, Path(key).read_bytes(), pem)
    named = (("grpc.ssl_target_name_override", _name_of(port, cert, key)),)
    return grpc.secure_channel(f"{_HOST}:{port}", credentials, named)


def _name_of(port: int, cert: str, key: str) -> str:
    """A name that the certificate is for."""
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    # It need not be signed by itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((_HOST, port), _TIMEOUT_S) as plain, context.wrap_socket(plain) as secure:
        names = (secure.getpeercert() or {}).get("subjectAltName", ())
    return str(names[0][1]).replace("*", "runtime", 1) if names else _HOST


if __name__ == "__main__":
    sys.exit(main())
