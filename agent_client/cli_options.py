"""The options that several commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from .access import (
    TLS_CA_VARIABLE,
    TLS_CERT_VARIABLE,
    TLS_KEY_VARIABLE,
    TLS_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Access,
    read_token,
)
from .errors import InvalidArgument
from .target import TARGET_VARIABLE

Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="HOST:PORT",
        envvar=TARGET_VARIABLE,
        help="The runtime's gRPC address.",
    ),
]
Salt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Cache namespace: prefixes are shared only under the same salt.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", metavar="N", min=1, help="Tokens to generate at most.")]
Temperature = Annotated[float, typer.Option(metavar="X", min=0.0, help="0 takes the likeliest token every time.")]


class TraceFormat(str, Enum):
    """Trace formats by the names that the readers go by."""

    auto = "auto"
    recorded = "radixloop-trace"
    openai = "openai-messages"
    magagent = "magagent"
    swe_agent = "swe-agent"


def parse_tool_latency(text: str) -> str | float:
    """Raises BadParameter for what is no pause."""
    if text in ("recorded", "none"):
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise typer.BadParameter(f"{text!r} is neither 'recorded' nor 'none' nor seconds from 0 up")
    return seconds


RUN, LOOP, OUT = "What is replayed", "How it is replayed", "What is reported"

Format = Annotated[
    TraceFormat,
    typer.Option(
        metavar="NAME",
        help=f"One of {', '.join(name.value for name in TraceFormat)}.",
        rich_help_panel=RUN,
        show_default="auto: told by content",
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Leave out calls whose prompt and output exceed N tokens.",
        rich_help_panel=RUN,
        show_default="the model's context",
    ),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Sessions in flight.", rich_help_panel=LOOP)
]
JsonReport = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write the report as JSON; - prints it, and nothing else.", rich_help_panel=OUT),
]

ACCESS = "How the runtime is reached"


def _pem(help: str) -> Any:
    return Annotated[Path | None, typer.Option(metavar="FILE", help=help, rich_help_panel=ACCESS)]


_ACCESS_OPTIONS = {
    "tls": Annotated[
        bool,
        typer.Option(
            "--tls", help=f"Speak TLS, with a check of its certificate ({TLS_VARIABLE}).", rich_help_panel=ACCESS
        ),
    ],
    "tls_ca": _pem(f"Trust these authorities, PEM; means --tls ({TLS_CA_VARIABLE})."),
    "tls_cert": _pem(f"Show this certificate, PEM, where one is asked for ({TLS_CERT_VARIABLE})."),
    "tls_key": _pem(f"The key of that certificate, PEM ({TLS_KEY_VARIABLE})."),
    "token_file": _pem(f"Send the token in this file ({TOKEN_FILE_VARIABLE}, or the token itself: {TOKEN_VARIABLE})."),
}


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how a runtime is reached, in place of its parameter `access`."""

    @functools.wraps(command)
    def wrapped(
        *,
        tls: bool,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        token_file: Path | None,
        **others: Any,
    ) -> None:
        given = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        changes: dict[str, Any] = {name: path for name, path in given.items() if path is not None}
        try:
            if token_file is not None:
                changes["token"] = read_token(token_file)
            access = Access.from_environment()
            access = replace(access, tls=access.tls or tls, **changes)
            # Files that cannot be read are told before anything else is done.
            access.credentials()
        except InvalidArgument as error:
            raise typer.BadParameter(error.message) from None
        command(**others, access=access)

    own = inspect.signature(command, eval_str=True)
    kept = [parameter for parameter in own.parameters.values() if parameter.name != "access"]
    for name, option in _ACCESS_OPTIONS.items():
        default = False if name == "tls" else None
        kept.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option))
    wrapped.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
    return wrapped


def named(format: TraceFormat) -> str | None:
    """The reader that was asked for; None to tell by content."""
    return None if format is TraceFormat.auto else format.value
