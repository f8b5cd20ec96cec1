"""The options that several commands have."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="HOST:PORT",
        envvar="RADIXLOOP_TARGET",
        help="The runtime's gRPC address.",
    ),
]
Salt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Cache namespace: prefixes are shared only under the same salt.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", metavar="N", min=1, help="Tokens to generate at most.")]
Temperature = Annotated[float, typer.Option(metavar="X", min=0.0, help="0 takes the likeliest token every time.")]

DEFAULT_TARGET = "localhost:50051"


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


def named(format: TraceFormat) -> str | None:
    """The reader that was asked for; None to tell by content."""
    return None if format is TraceFormat.auto else format.value
