"""The command line of the client. What a command does is in `commands`, loaded when it runs: --help stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .access import Access
from .cli_demands import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    OneCall,
    Regex,
    ToolChoice,
    Tools,
    demands,
    read_tools,
)
from .cli_gateway import gateway
from .cli_loops import BENCH_HELP, REPLAY_HELP, bench, export, replay
from .cli_options import (
    AsJson,
    MaxTokens,
    Salt,
    Target,
    Temperature,
    TraceFormat,
    named,
    with_access,
)
from .target import DEFAULT_TARGET

app = typer.Typer(
    name="agent-client",
    help="Talks to a Radixloop runtime: replay recorded agent loops against it, use it, look at it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


app.command(help=REPLAY_HELP)(replay)
app.command(help=BENCH_HELP)(bench)
app.command()(export)
app.command()(gateway)


@app.command()
@with_access
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
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    grammar: Grammar = None,
    choice: Choices = None,
    tools: Tools = None,
    tool_choice: ToolChoice = None,
    one_call: OneCall = False,
    *,
    access: Access,
) -> None:
    """Run one prompt and print the text as it is written."""
    from .commands.generate import run

    raise typer.Exit(
        run(
            target,
            prompt,
            chat=chat,
            system=system,
            tools=read_tools(tools),
            salt=salt,
            as_json=json,
            access=access,
            options={
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": top_p,
                "bypass_cache": no_cache,
                **({} if seed is None else {"seed": seed}),
                **({"stop": stop} if stop else {}),
                **demands(json_schema, json_object, regex, grammar, choice, tool_choice, one_call),
            },
        )
    )


@app.command()
@with_access
def chat(
    target: Target = DEFAULT_TARGET,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.7,
    salt: Salt = None,
    *,
    access: Access,
) -> None:
    """Talk to the model. The runtime keeps the conversation, so a turn computes only what is new."""
    from .commands.chat import run

    raise typer.Exit(run(target, system, salt, {"max_tokens": max_tokens, "temperature": temperature}, access))


@app.command()
@with_access
def stats(target: Target = DEFAULT_TARGET, json: AsJson = False, *, access: Access) -> None:
    """What the runtime serves, its pool and its counters."""
    from .commands.stats import run

    raise typer.Exit(run(target, json, access))


@app.command()
@with_access
def nodes(
    target: Target = DEFAULT_TARGET,
    salt: Annotated[str | None, typer.Option(metavar="TEXT", help="Only this namespace.", show_default="all")] = None,
    head_tokens: Annotated[
        int, typer.Option(metavar="N", min=0, max=256, help="Tokens of each node to show as text.")
    ] = 16,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of a tree.")] = False,
    *,
    access: Access,
) -> None:
    """Draw the cached tree."""
    from .commands.nodes import run

    raise typer.Exit(run(target, salt, head_tokens, json, access))


@app.command()
@with_access
def events(
    target: Target = DEFAULT_TARGET,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=1, help="End after N batches.", show_default="never"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, tokens included.")] = False,
    *,
    access: Access,
) -> None:
    """Watch blocks come into the cache and go: first all that is cached, then what happens. Ctrl-C ends it."""
    from .commands.events import run

    raise typer.Exit(run(target, json, limit, access))


@app.command()
@with_access
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
    *,
    access: Access,
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
        access=access,
    )
    raise typer.Exit(code)


@app.command()
@with_access
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
    *,
    access: Access,
) -> None:
    """Find what breaks prefixes before it is sent: clocks, changing tools, rewritten histories. Exits with 1 if any."""
    from .commands.lint import run

    raise typer.Exit(run(trace, named(format), target, json, access))


@app.command()
@with_access
def leases(
    target: Target = DEFAULT_TARGET,
    release: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="End this lease first; may be given several times.")
    ] = None,
    json: AsJson = False,
    *,
    access: Access,
) -> None:
    """List what is kept on request: leases and quotas."""
    from .commands.leases import run

    raise typer.Exit(run(target, json, release or [], access))


@app.command()
@with_access
def top(
    target: Target = DEFAULT_TARGET,
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and leave, as where no terminal looks on.")
    ] = False,
    *,
    access: Access,
) -> None:
    """Watch a runtime live: requests, pool, leases, flow, the head of the tree. Ctrl-C ends it."""
    from .commands.top import run

    raise typer.Exit(run(target, interval, once, access))


@app.command()
@with_access
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
    *,
    access: Access,
) -> None:
    """Record agent loops: real tools over a folder, words by the model. What replay replays."""
    from .commands.record import run

    raise typer.Exit(run(target, root, out, task or [], max_tokens=max_tokens, seed=seed, access=access))
