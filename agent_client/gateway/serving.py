"""The gateway as a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import uvicorn
from radixloop.addresses import is_loopback

from ..access import Access
from .app import create_app
from .tenants import Tenants

DRAIN_S = 10


class NotSafe(ValueError):
    """The address may not be listened at as it was asked for."""


def check_listening(host: str, cert: Path | None, key: Path | None, *, keys: bool, insecure: bool) -> None:
    """Raises NotSafe where other machines may call and neither certificate, nor keys, nor a word says that they may."""
    if (cert is None) != (key is None):
        raise NotSafe("--listen-cert and --listen-key are a certificate and its key: give both or neither")
    if insecure or is_loopback(host):
        return
    if cert is None:
        raise NotSafe(
            f"--host is {host!r}, where other machines may call: give --listen-cert FILE --listen-key FILE, or "
            "--insecure to serve in the clear"
        )
    if not keys:
        raise NotSafe(
            f"--host is {host!r}, where other machines may call: give --keys FILE, or --insecure to let everybody in"
        )


def serve(
    targets: Sequence[str],
    host: str,
    port: int,
    aliases: Sequence[str] = (),
    tenants: Tenants | None = None,
    access: Access | None = None,
    *,
    cert: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serves until a signal ends it.

    Raises SystemExit where the address cannot be bound, OSError for bad files, KeyboardInterrupt after Ctrl-C.
    """
    config = uvicorn.Config(
        create_app(targets, aliases, tenants, access),
        host=host,
        port=port,
        log_level="warning",
        # Streams of clients that stay connected must not keep the process from ending.
        timeout_graceful_shutdown=DRAIN_S,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    # uvicorn.run would keep Ctrl-C to itself.
    server = uvicorn.Server(config)
    server.run()
    if not server.started:
        raise SystemExit(1)
