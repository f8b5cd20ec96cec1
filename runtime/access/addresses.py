"""Which ZeroMQ endpoints only this machine can connect to."""

from __future__ import annotations

from urllib.parse import urlsplit

from radixloop.addresses import is_loopback


def is_loopback_endpoint(endpoint: str) -> bool:
    """Whether only this machine can connect to a ZeroMQ endpoint."""
    address = urlsplit(endpoint)
    return address.scheme != "tcp" or is_loopback(address.hostname or "")
