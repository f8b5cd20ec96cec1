"""The options of `agent-client gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .access import Access
from .cli_options import with_access
from .target import DEFAULT_TARGET, TARGET_VARIABLE

LISTEN, BEHIND = "Where it listens", "What is behind it"


@with_access
def gateway(
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime",
            "-r",
            metavar="HOST:PORT",
            envvar=TARGET_VARIABLE,
            help="A runtime's gRPC address; several may be given, and a session stays with one of them.",
            show_default=DEFAULT_TARGET,
            rich_help_panel=BEHIND,
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Another name for the model; may be given several times.", rich_help_panel=BEHIND
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where HTTP listens. Any but a loopback address takes keys and a certificate, or --insecure.",
            rich_help_panel=LISTEN,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="And at which port.", rich_help_panel=LISTEN)
    ] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Lines of TENANT KEY or TENANT KEY priority=N; each tenant has a cache of its own, and whoever has no "
            "key is refused.",
            show_default="everybody is let in",
            rich_help_panel=LISTEN,
        ),
    ] = None,
    listen_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve HTTPS with this certificate, PEM.", rich_help_panel=LISTEN),
    ] = None,
    listen_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its key, PEM, without a password.", rich_help_panel=LISTEN)
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen in the clear and without keys, also where other machines may call.",
            rich_help_panel=LISTEN,
        ),
    ] = False,
    *,
    access: Access,
) -> None:
    """Serve the APIs of OpenAI and Anthropic over HTTP in front of runtimes, for clients that take a base URL."""
    from .commands.gateway import run

    code = run(
        runtime or [DEFAULT_TARGET],
        host,
        port,
        aliases=alias or [],
        keys=keys,
        cert=listen_cert,
        key=listen_key,
        insecure=insecure,
        access=access,
    )
    raise typer.Exit(code)
