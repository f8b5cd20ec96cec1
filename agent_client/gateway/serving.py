"""The gateway as a process."""

from __future__ import annotations

from collections.abc import Sequence

import uvicorn

from ..access import Access
from .app import create_app
from .tenants import Tenants

DRAIN_S = 10


def serve(
    target: str,
    host: str,
    port: int,
    aliases: Sequence[str] = (),
    tenants: Tenants | None = None,
    access: Access | None = None,
) -> None:
    """Serves until a signal ends it. Raises SystemExit when the address cannot be bound."""
    # Streams of clients that stay connected must not keep the process from ending.
    app = create_app(target, aliases, tenants, access)
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=DRAIN_S)
