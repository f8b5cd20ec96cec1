"""Ports that nobody listens at."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One of this machine's own. Nobody else is given it until it is bound, but by bad luck."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
