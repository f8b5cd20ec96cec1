"""Which addresses only this machine can connect to."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_endpoint(endpoint: str) -> bool:
    """The same of a ZeroMQ endpoint."""
    address = urlsplit(endpoint)
    return address.scheme != "tcp" or is_loopback(address.hostname or "")
