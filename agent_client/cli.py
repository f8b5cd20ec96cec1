"""The command line of the client. What a command does is in `commands`, loaded when it runs: --help stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_options import (
    DEFAULT_TARGET,
    LOOP,
    OUT,
    RUN,
    AsJson,
    Concurrency,
    Format,
    JsonReport,
    MaxContext,
    MaxTokens,
    Salt,
    Target,
    Temperature,
    TraceFormat,
    named,
    parse_tool_latency,
)

app = typer.Typer(
    name="agent-client",
    help="Talks to a Radixloop runtime: replay recorded agent loops against it, use it, look at it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"agent-client {version('radixloop')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


_REPLAY_HELP = """Replay recorded agent loops and report what the cache saved.

Calls of a session run in order, sessions side by side, branches in parallel. The hit rate stands beside what a cache \
of endless size would have had for the same tokens. Exits with 1 when a call failed."""


@app.command(help=_REPLAY_HELP)
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
) -> None:
    from .commands.replay import run
    from .replay import ReplayOptions

    if compare and no_cache:
        raise typer.BadParameter("--compare makes the run without the cache too; leave --no-cache out")
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
        )
    )


_BENCH_HELP = """Drive the same token streams against several servers, in turns, and print the ratios.

A TARGET is HOST:PORT (a runtime of ours), openai:URL (vLLM and others that have /v1/completions) or llama:URL \
(llama.cpp's server). Recorded loops are tokenised once; every target gets the same ids and generates as many tokens, \
alone, while the others idle. The first target is compared with the rest. Exits with 1 when a call failed."""


@app.command(help=_BENCH_HELP)
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
    raise typer.Exit(run(trace, target, options, tokenizer=tokenizer, format=named(format), json_file=json))


@app.command()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; read from standard input when left out.")
    ] = None,
    target: Target = DEFAULT_TARGET,
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt as a user's message.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message (implies --chat).")] = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: Annotated[float, typer.Option(metavar="X", help="Nucleus, above 0 to 1.")] = 1.0,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="The same seed gives the same text.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given several times.")
    ] = None,
    salt: Salt = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor fill the cache.")] = False,
    json: AsJson = False,
) -> None:
    """Run one prompt and print the text as it is written."""
    from .commands.generate import run

    raise typer.Exit(
        run(
            target,
            prompt,
            chat=chat,
            system=system,
            salt=salt,
            as_json=json,
            options={
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": top_p,
                "bypass_cache": no_cache,
                **({} if seed is None else {"seed": seed}),
                **({"stop": stop} if stop else {}),
            },
        )
    )


@app.command()
def chat(
    target: Target = DEFAULT_TARGET,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.7,
    salt: Salt = None,
) -> None:
    """Talk to the model. The runtime keeps the conversation, so a turn computes only what is new."""
    from .commands.chat import run

    raise typer.Exit(run(target, system, salt, {"max_tokens": max_tokens, "temperature": temperature}))


@app.command()
def stats(target: Target = DEFAULT_TARGET, json: AsJson = False) -> None:
    """What the runtime serves, its pool and its counters."""
    from .commands.stats import run

    raise typer.Exit(run(target, json))


@app.command()
def nodes(
    target: Target = DEFAULT_TARGET,
    salt: Annotated[str | None, typer.Option(metavar="TEXT", help="Only this namespace.", show_default="all")] = None,
    head_tokens: Annotated[
        int, typer.Option(metavar="N", min=0, max=256, help="Tokens of each node to show as text.")
    ] = 16,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of a tree.")] = False,
) -> None:
    """Draw the cached tree."""
    from .commands.nodes import run

    raise typer.Exit(run(target, salt, head_tokens, json))


@app.command()
def events(
    target: Target = DEFAULT_TARGET,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=1, help="End after N batches.", show_default="never"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, tokens included.")] = False,
) -> None:
    """Watch blocks come into the cache and go: first all that is cached, then what happens. Ctrl-C ends it."""
    from .commands.events import run

    raise typer.Exit(run(target, json, limit))


@app.command()
def explain(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A chat request as JSON, a trace, or plain text.", show_default="see --text"
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt itself; - reads standard input.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send the text as a user's message.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message (implies --chat).")] = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a trace, this session.", show_default="the first")
    ] = None,
    call: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of that session, this call.", show_default="the last")
    ] = None,
    session_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The prompt is the next turn of this session of the runtime.")
    ] = None,
    salt: Salt = None,
    public_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="So many leading tokens are shared with every salt.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Say why a prompt would miss: where it parts from what is stored, what was evicted, what it costs."""
    from .commands.explain import run

    code = run(
        target,
        file,
        text=text,
        chat=chat,
        system=system,
        recorded=session,
        call=call,
        session_id=session_id,
        salt=salt,
        public_tokens=public_tokens,
        as_json=json,
    )
    raise typer.Exit(code)


@app.command()
def lint(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, or a folder of them.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="HOST:PORT",
            help="Also ask this runtime what its model's template and tokenizer do to the histories.",
            show_default="the trace alone",
        ),
    ] = None,
    format: Annotated[
        TraceFormat,
        typer.Option(
            metavar="NAME",
            help=f"One of {', '.join(name.value for name in TraceFormat)}.",
            show_default="auto: told by content",
        ),
    ] = TraceFormat.auto,
    json: AsJson = False,
) -> None:
    """Find what breaks prefixes before it is sent: clocks, changing tools, rewritten histories. Exits with 1 if any."""
    from .commands.lint import run

    raise typer.Exit(run(trace, named(format), target, json))


@app.command()
def leases(
    target: Target = DEFAULT_TARGET,
    release: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="End this lease first; may be given several times.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List what is kept on request: leases and quotas."""
    from .commands.leases import run

    raise typer.Exit(run(target, json, release or []))


@app.command()
def top(
    target: Target = DEFAULT_TARGET,
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Watch a runtime live. Ctrl-C ends it."""
    from .commands.top import run

    raise typer.Exit(run(target, interval))


@app.command()
def record(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The trace to write; .gz compresses it.")],
    target: Target = DEFAULT_TARGET,
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="The repository that the tools work over.")] = Path("."),
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Carry out this task; may be given several times.", show_default="all"),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", metavar="N", min=1, help="Tokens of each reply's words at most.")
    ] = 32,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The same seed gives the same words.")] = 1,
) -> None:
    """Record agent loops: real tools over a folder, words by the model. What replay replays."""
    from .commands.record import run

    raise typer.Exit(run(target, root, out, task or [], max_tokens=max_tokens, seed=seed))
