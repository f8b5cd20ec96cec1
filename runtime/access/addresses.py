"""Which addresses a runtime may listen on in the clear."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from radixloop.addresses import is_loopback


def refuse_in_the_clear(host: str, *, tls: bool, endpoints: Mapping[str, str]) -> None:
    """Raises ValueError for the first address that other machines can reach in the clear.

    `endpoints` are those of ZeroMQ by setting; they never speak TLS.
    """
    if not tls and not is_loopback(host):
        raise ValueError(
            f"host is {host!r}, where other machines may call: give tls_cert and tls_key, or insecure to serve in the "
            "clear (flags: --tls-cert FILE --tls-key FILE, or --insecure)"
        )
    for name, endpoint in endpoints.items():
        if not is_loopback_endpoint(endpoint):
            raise ValueError(
                f"{name} is {endpoint!r}, where other machines may read the events, which carry prompts and are never "
                "encrypted: give insecure to allow it (flag: --insecure)"
            )


def is_loopback_endpoint(endpoint: str) -> bool:
    """Whether only this machine can connect to a ZeroMQ endpoint."""
    address = urlsplit(endpoint)
    return address.scheme != "tcp" or is_loopback(address.hostname or "")
