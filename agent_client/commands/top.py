"""`agent-client top`: a runtime, live."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live

from ..access import Access
from ..client import RadixClient
from ..retry import RetryPolicy
from .failures import FAILED, reported
from .looks import Watcher
from .top_screen import screen

# A runtime that comes back is seen within about this time; gRPC's own limit is two minutes.
_RECONNECT_MS = 1000


@reported
def run(target: str, interval_s: float, once: bool, access: Access | None = None) -> int:
    """One picture, or one after the other until Ctrl-C where somebody looks on."""
    # One picture is for a file or another program, whatever standard output is.
    console = Console(highlight=False, force_terminal=False if once else None)
    with RadixClient(
        target,
        access=access,
        retry=RetryPolicy(max_attempts=1),
        timeout_s=max(5.0, interval_s),
        options=[("grpc.max_reconnect_backoff_ms", _RECONNECT_MS), ("grpc.initial_reconnect_backoff_ms", 200)],
    ) as client:
        watcher = Watcher(client)
        if not console.is_terminal:
            # Rates need a second look.
            time.sleep(interval_s)
            watcher.look_again()
            console.print(screen(client.target, watcher.before, watcher.now, watcher.trouble))
            return FAILED if watcher.trouble else 0
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                picture = screen(client.target, watcher.before, watcher.now, watcher.trouble, console.height)
                live.update(picture, refresh=True)
                time.sleep(interval_s)
                watcher.look_again()
