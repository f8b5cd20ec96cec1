"""The commands for recorded loops, as the command line takes them: replay, bench and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .access import Access
from .cli_options import (
    LOOP,
    OUT,
    RUN,
    Concurrency,
    Format,
    JsonReport,
    MaxContext,
    Target,
    TraceFormat,
    named,
    parse_tool_latency,
    with_access,
)
from .target import DEFAULT_TARGET

REPLAY_HELP = """Replay recorded agent loops and report what the cache saved.

Calls of a session run in order, sessions side by side, branches in parallel. The hit rate stands beside what a cache \
of endless size would have had for the same tokens. Exits with 1 when a call failed."""


@with_access
def replay(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="A trace file, or a folder of them.",
            show_default="the sample that comes with this package",
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    format: Format = TraceFormat.auto,
    sessions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Replay N sessions.", rich_help_panel=RUN, show_default="all"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Pick and order the sessions at random by this seed.",
            rich_help_panel=RUN,
            show_default="the first ones, in order",
        ),
    ] = None,
    max_context: MaxContext = None,
    concurrency: Concurrency = 4,
    output_tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Generate N tokens in each call; with --live-replies, at most N.",
            rich_help_panel=LOOP,
        ),
    ] = 32,
    tool_latency: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            parser=parse_tool_latency,
            help="The pause before each call of a session but the first: recorded, none, or a number of seconds.",
            rich_help_panel=LOOP,
        ),
    ] = "none",
    live_replies: Annotated[
        bool,
        typer.Option(
            "--live-replies",
            help="Go on from what the model wrote instead of the recorded reply.",
            rich_help_panel=LOOP,
        ),
    ] = False,
    server_sessions: Annotated[
        bool,
        typer.Option(
            "--server-sessions",
            help="Use the runtime's sessions: a call sends only what is new. Implies --live-replies.",
            rich_help_panel=LOOP,
        ),
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="The baseline: neither read nor fill the cache.", rich_help_panel=LOOP)
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Replay without and with the cache, each from an empty cache, and print both.",
            rich_help_panel=LOOP,
        ),
    ] = False,
    salt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Cache namespace to replay in; what is cached there already counts as hits.",
            rich_help_panel=LOOP,
            show_default="a fresh one for each run",
        ),
    ] = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="Empty the runtime's whole cache first.", rich_help_panel=LOOP)
    ] = False,
    per_turn: Annotated[
        bool, typer.Option("--per-turn", help="Also print a line for each turn.", rich_help_panel=OUT)
    ] = False,
    json: JsonReport = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as one page for a browser.", rich_help_panel=OUT),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --html: what a million tokens cost, as JSON.",
            rich_help_panel=OUT,
            show_default="an example",
        ),
    ] = None,
    *,
    access: Access,
) -> None:
    from .commands.replay import run
    from .replay import ReplayOptions

    if compare and no_cache:
        raise typer.BadParameter("--compare makes the run without the cache too; leave --no-cache out")
    if prices is not None and html is None:
        raise typer.BadParameter("--prices is for the page that --html writes")
    options = ReplayOptions(
        concurrency=concurrency,
        output_tokens=output_tokens,
        max_context=max_context,
        tool_latency=tool_latency,  # type: ignore[arg-type]
        live_replies=live_replies or server_sessions,
        server_sessions=server_sessions,
    )
    raise typer.Exit(
        run(
            trace,
            target,
            options,
            format=named(format),
            runs=("no_cache", "cached") if compare else ("no_cache",) if no_cache else ("cached",),
            sessions=sessions,
            seed=seed,
            salt=salt,
            flush=flush or compare,
            per_turn=per_turn,
            json_file=json,
            html_file=html,
            prices=prices,
            access=access,
        )
    )


BENCH_HELP = """Drive the same token streams against several servers, in turns, and print the ratios.

A TARGET is HOST:PORT (a runtime of ours), openai:URL (vLLM and others that have /v1/completions) or llama:URL \
(llama.cpp's server). Recorded loops are tokenised once; every target gets the same ids and generates as many tokens, \
alone, while the others idle. The first target is compared with the rest. Exits with 1 when a call failed."""


@with_access
def bench(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="A trace file, or a folder of them.",
            show_default="the sample that comes with this package",
        ),
    ] = None,
    target: Annotated[
        list[str],
        typer.Option("--target", "-t", metavar="TARGET", help="A server; give several.", rich_help_panel=RUN),
    ] = [DEFAULT_TARGET],  # noqa: B006
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The runtime that tokenises the trace.",
            rich_help_panel=RUN,
            show_default="the first target that is a runtime",
        ),
    ] = None,
    format: Format = TraceFormat.auto,
    sessions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The trace's first N sessions.", rich_help_panel=RUN, show_default="all"),
    ] = None,
    max_context: MaxContext = None,
    concurrency: Concurrency = 4,
    output_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Generate N tokens in each call.", rich_help_panel=LOOP)
    ] = 32,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Everything N times, each from a cold cache.", rich_help_panel=LOOP)
    ] = 1,
    group: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The next target's turn comes after N sessions.",
            rich_help_panel=LOOP,
            show_default="after all of them",
        ),
    ] = None,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Prompts share nothing; caches off where a call can.", rich_help_panel=LOOP),
    ] = False,
    fan_out: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Instead of the loops: N branches of one uncached trunk, arriving together.",
            rich_help_panel=LOOP,
            show_default="the loops",
        ),
    ] = None,
    trunk: Annotated[
        int, typer.Option(metavar="T", min=3, help="Tokens that the branches share.", rich_help_panel=LOOP)
    ] = 3000,
    tail: Annotated[
        int, typer.Option(metavar="T", min=1, help="Tokens of each branch's own.", rich_help_panel=LOOP)
    ] = 60,
    json: JsonReport = None,
    *,
    access: Access,
) -> None:
    from .bench import BenchOptions, FanOut
    from .commands.bench import run

    options = BenchOptions(
        sessions=sessions,
        concurrency=concurrency,
        output_tokens=output_tokens,
        max_context=max_context,
        rounds=rounds,
        group=group,
        use_cache=not no_cache,
        fan_out=None if fan_out is None else FanOut(fan_out, trunk, tail),
    )
    code = run(trace, target, options, tokenizer=tokenizer, format=named(format), json_file=json, access=access)
    raise typer.Exit(code)


@with_access
def export(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, or a folder of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file of sessions to write.")],
    target: Target = DEFAULT_TARGET,
    format: Format = TraceFormat.auto,
    *,
    access: Access,
) -> None:
    """Write a trace as sessions that agentic-bench replays, with the tokens that the runtime's model counts."""
    from .commands.export import run

    raise typer.Exit(run(trace, out, named(format), target, access))
