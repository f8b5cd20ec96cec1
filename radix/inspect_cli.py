"""`radix inspect`: options, one look or a live view, JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import redis
    from rich.console import Console, RenderableType

    from radix.inspect import RuntimeView
    from radix.inspect_render import Cut

_TIMEOUT_S = 5.0
_ROWS = 200


def inspect(
    redis_url: Annotated[
        str,
        typer.Option(
            "--redis", envvar="RADIXLOOP_REDIS", metavar="URL", help="The Redis that the runtimes publish to."
        ),
    ] = "redis://127.0.0.1:6379",
    runtime: Annotated[str | None, typer.Option(metavar="ID", show_default="all", help="One runtime only.")] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            show_default="all",
            help="One namespace only: default, salt=X, adapter=Y, salt=X,adapter=Y.",
        ),
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, metavar="N", show_default="all", help="Levels to draw.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", show_default=f"{_ROWS}, or what fits with --watch", help="Lines to draw; 0 draws all."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep looking until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON; with --watch, one line a look.")
    ] = False,
) -> None:
    """Draw what running runtimes have cached, from Redis alone.

    Each line is a run of tokens that prompts share: its length, the KV blocks it holds, how often a prompt hit it, how
    long ago, how many requests are using it now, and the text it begins with.

    A runtime publishes when it is started with --redis; its log and its ready file say where.

    Examples:

        radix inspect --redis redis://127.0.0.1:6379

        radix inspect --watch --depth 3
    """
    look = _Look(redis_url, runtime, namespace, as_json)
    if watch:
        _watch(look, depth, rows, interval)
    else:
        _once(look, depth, _ROWS if rows is None else rows)


class _Look:
    """One reader's question, asked as often as wanted."""

    def __init__(self, url: str, runtime: str | None, namespace: str | None, as_json: bool) -> None:
        from radix.metadata_client import BadRedisUrl, connect, without_password

        self.shown_url = without_password(url)
        self.as_json = as_json
        self._runtime = runtime
        self._namespace = namespace
        try:
            self._client: redis.Redis = connect(url, _TIMEOUT_S)
        except BadRedisUrl as error:
            raise typer.BadParameter(str(error), param_hint="--redis") from None

    def __call__(self) -> tuple[list[RuntimeView], str]:
        """The runtimes, and why there are none where there are none."""
        import redis

        from radix.inspect import NamespaceNotFound, RuntimeNotFound, read_runtimes
        from radix.metadata_schema import BadRuntimeId

        try:
            views = read_runtimes(self._client, self._runtime, self._namespace)
        except (redis.RedisError, OSError) as error:
            return [], f"cannot read from {self.shown_url}: {error}"
        except (RuntimeNotFound, NamespaceNotFound, BadRuntimeId, ValueError) as error:
            return [], str(error.args[0])
        if not views:
            return [], (
                f"no runtime is alive in {self.shown_url}: start one with "
                f"radix-runtime serve --redis {self.shown_url}, or look into another Redis with --redis"
            )
        return views, ""


def _once(look: _Look, depth: int | None, rows: int) -> None:
    from rich.console import Console

    views, problem = look()
    if look.as_json:
        typer.echo(_json_text(views, indent=2))
    elif views:
        _print(Console(), views, _cut(depth, rows))
    if problem:
        typer.echo(problem, err=True)
        raise typer.Exit(1)


def _watch(look: _Look, depth: int | None, rows: int | None, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    try:
        if look.as_json:
            while True:
                typer.echo(_json_text(look()[0]))
                time.sleep(interval)
        if not console.is_terminal:
            while True:
                console.print(_frame(look, console, depth, _ROWS if rows is None else rows))
                time.sleep(interval)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_frame(look, console, depth, rows), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        # As a shell tells what Ctrl-C ended.
        raise typer.Exit(130) from None


def _frame(look: _Look, console: Console, depth: int | None, rows: int | None) -> RenderableType:
    from rich.text import Text

    from radix.inspect_render import render, rows_that_fit

    views, problem = look()
    if not views:
        return Text(problem, style="yellow")
    return render(views, _cut(depth, rows_that_fit(console, views) if rows is None else rows))


def _print(console: Console, views: list[RuntimeView], cut: Cut) -> None:
    from radix.inspect_render import render

    console.print(render(views, cut))


def _cut(depth: int | None, rows: int) -> Cut:
    from radix.inspect_render import Cut

    return Cut(depth, rows or None)


def _json_text(views: list[RuntimeView], indent: int | None = None) -> str:
    import json

    document: dict[str, Any] = {"runtimes": [view.as_json() for view in views]}
    return json.dumps(document, ensure_ascii=False, indent=indent)
