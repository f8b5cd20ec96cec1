"""`radix simulate`: options, progress and table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radix.cli_values import policies_named, print_trace
from radix.errors import InvalidArgument
from radix.output import JSON_HELP, check_json_target, write_json
from radix.sizes import format_tokens, parse_capacity, short_count

if TYPE_CHECKING:
    from rich.progress import Progress

    from radix.simulate import Run
    from radix.tiered.layout import Layout
    from radix.tiered.run import TieredRun
    from radix.traces import Trace

_TOKEN_BLOCK_SIZE = 16


def simulate(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE",
            show_default=False,
            help="Traces as .jsonl or .jsonl.gz: claude-code or mooncake hash ids, or tokens. Each is run on its own.",
        ),
    ],
    capacity_tokens: Annotated[
        list[str],
        typer.Option(metavar="N,N,...", help="Cache sizes in tokens, one run each: 500k, 2M, 1500000 or inf."),
    ] = ["inf"],  # noqa: B006
    policy: Annotated[
        list[str], typer.Option(metavar="NAME,...", help="Eviction policies, one run each; 'all' runs every one.")
    ] = ["agent"],  # noqa: B006
    live: Annotated[
        list[str],
        typer.Option(
            metavar="N,N,...",
            show_default=False,
            help="Closed loop: so many sessions side by side with their recorded gaps, one run each. Without it calls "
            "run in file order. For traces that tell sessions and times.",
        ),
    ] = [],  # noqa: B006
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65536,
            metavar="N",
            show_default=False,
            help="Tokens a block. Token traces: 16 unless given. mooncake: tokens an id stands for, 512 unless given. "
            "claude-code files say it themselves.",
        ),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Run only the first N sessions (mooncake: calls)."),
    ] = None,
    tiers: Annotated[
        str | None,
        typer.Option(
            metavar="device=SIZE,host=SIZE,disk=SIZE",
            show_default=False,
            help="Memories in bytes (80GiB), or as N@DTYPE, what N tokens of --model take: 1M@fp16. In place of "
            "--capacity-tokens.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE|JSON", show_default=False, help="With --tiers: whose KV it is; a config says enough."
        ),
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option(metavar="NAME", help="With --tiers: precision of the KV in every tier, as in radix plan.")
    ] = "fp16",
    bandwidth: Annotated[
        str,
        typer.Option(metavar="host=SIZE,disk=SIZE", help="With --tiers: bytes a second to the device. Measure yours."),
    ] = "host=25GB,disk=3GB",
    prefill_rate: Annotated[
        str, typer.Option(metavar="N", help="With --tiers: tokens a second a prompt is computed at. Measure yours.")
    ] = "10k",
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Send a trace's calls through the prefix store and print the hit rate at each capacity.

    No model runs: the same store that the runtime uses looks up, stores and evicts every call's prefix. The hit rate
    (cached input tokens / input tokens) is printed beside that of the best order of eviction (belady) and of a cache
    that never forgets (ideal).

    Examples:

        radix simulate traces.jsonl.gz --capacity-tokens 500k,1M,inf

        radix simulate traces.jsonl.gz --live 8,32 --capacity-tokens 1M,4M --policy all

        radix simulate calls.jsonl --block-size 64 --json -

        radix simulate traces.jsonl.gz --live 32 --tiers device=1M@fp16,host=1M@fp16
        --model ./Llama-3-8B --kv-dtype fp8_e4m3
    """
    from rich.console import Console

    from radix.tiered.table import print_tiers

    check_json_target(json)
    capacities = _capacities(capacity_tokens)
    policies = policies_named(policy)
    lives = _lives(live)
    layout = _layout(tiers, model, kv_dtype, bandwidth, prefill_rate)
    if layout is not None and capacities != [None]:
        raise typer.BadParameter("it stands in place of --capacity-tokens", param_hint="--tiers")
    runs: list[Run | TieredRun] = []
    stopped = False
    console = Console()
    with _progress() as progress:
        try:
            for file in dict.fromkeys(traces):
                for run in _run_trace(file, lives, capacities, policies, block_size, sessions, layout, progress):
                    runs.append(run)
        except KeyboardInterrupt:
            stopped = True
    if json is not None:
        write_json(json, {"runs": [run.as_json() for run in runs]})
    if json != "-":
        for file in dict.fromkeys(traces):
            own = [run for run in runs if run.trace == str(file)]
            if layout is None:
                _print_table(console, own)  # type: ignore[arg-type]
            else:
                print_tiers(console, own)  # type: ignore[arg-type]
    if stopped:
        typer.echo("stopped: the runs that were finished are shown", err=True)
        raise typer.Exit(130)


def _capacities(values: list[str]) -> list[int | None]:
    parts = [part for value in values for part in value.split(",")]
    try:
        return list(dict.fromkeys(parse_capacity(part) for part in parts))
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint="--capacity-tokens") from None


def _lives(values: list[str]) -> list[int | None]:
    parts = [part.strip() for value in values for part in value.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise typer.BadParameter(f"{part!r} is no number of sessions from 1", param_hint="--live")
    return list(dict.fromkeys(int(part) for part in parts)) or [None]


def _run_trace(
    file: Path,
    lives: list[int | None],
    capacities: list[int | None],
    policies: list[str],
    block_size: int | None,
    sessions: int | None,
    layout: Layout | None,
    progress: Progress,
) -> Iterator[Run | TieredRun]:
    from radix.simulate import ideal
    from radix.simulate import simulate as run
    from radix.tiered.run import simulate_tiers
    from radix.traces import read_trace

    size = file.stat().st_size if file.is_file() else None
    task = progress.add_task(f"reading {file.name}", total=size)
    trace = read_trace(
        file, block_size=block_size, sessions=sessions, on_bytes=lambda done: progress.update(task, completed=done)
    )
    progress.update(task, completed=size)
    _warn(trace)
    blocks_of = (block_size or _TOKEN_BLOCK_SIZE) if trace.has_tokens else trace.unit
    for capacity in capacities:
        if capacity is not None and capacity < blocks_of:
            raise typer.BadParameter(
                f"{capacity} tokens hold no block: the blocks of {file.name} have {blocks_of} tokens",
                param_hint="--capacity-tokens",
            )
    for live in lives:
        order = trace if live is None else _interleaved(trace, live)
        best = ideal(order, blocks_of)
        name = "" if live is None else f"{live} live, "
        if layout is not None:
            for policy in policies:
                task = progress.add_task(f"{name}tiers, {policy}", total=2 * len(trace.calls))
                yield simulate_tiers(
                    order,
                    layout,
                    best=best,
                    block_size=blocks_of,
                    policy=policy,
                    live=live,
                    on_call=lambda done, task=task: progress.update(task, completed=done),  # type: ignore[misc]
                )
            continue
        for capacity in capacities:
            for policy in policies:
                task = progress.add_task(f"{name}{format_tokens(capacity)} tokens, {policy}", total=len(trace.calls))
                yield run(
                    order,
                    capacity,
                    best=best,
                    block_size=blocks_of,
                    policy=policy,
                    live=live,
                    on_call=lambda done, task=task: progress.update(task, completed=done),  # type: ignore[misc]
                )


def _layout(tiers: str | None, model: str | None, dtype: str, bandwidth: str, prefill_rate: str) -> Layout | None:
    from radix.model_shapes import model_shape
    from radix.plan import dtype_named
    from radix.sizes import parse_tokens
    from radix.tiered.layout import Layout, parse_bandwidth, parse_tiers

    if tiers is None:
        return None
    if model is None:
        raise typer.BadParameter("--tiers needs it: a token's bytes follow from the model", param_hint="--model")
    shape = model_shape(model)
    option = "--tiers"
    try:
        sizes = parse_tiers(tiers, shape)
        option = "--kv-dtype"
        named = dtype_named(dtype)
        option = "--bandwidth"
        rates = parse_bandwidth(bandwidth, {"host": 25 * 10**9, "disk": 3 * 10**9})
        option = "--prefill-rate"
        return Layout(shape, named, sizes, rates, parse_tokens(prefill_rate))
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint=option) from None


def _interleaved(trace: Trace, live: int) -> Trace:
    from radix.closed_loop import interleave

    try:
        return interleave(trace, live)
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint="--live") from None


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _warn(trace: Trace) -> None:
    if trace.uneven:
        typer.echo(
            f"warning: {trace.uneven:,} of {len(trace.calls):,} calls have a number of hash_ids that does not go with "
            f"their input length; wrong --block-size? First: {trace.first_uneven}",
            err=True,
        )


def _print_table(console: Any, runs: list[Run]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if not runs:
        return
    first = runs[0]
    print_trace(console, first)
    columns: dict[str, list[str]] = {}
    if first.live is not None:
        columns["live"] = [str(run.live) for run in runs]
    columns["capacity"] = [format_tokens(run.capacity_tokens) for run in runs]
    several = len({run.policy for run in runs}) > 1
    if several:
        columns["policy"] = [run.policy for run in runs]
    columns["hit rate"] = [f"{run.hit_rate:.3%}" for run in runs]
    lru = {(run.live, run.capacity_tokens): run.hit_rate for run in runs if run.policy == "lru"}
    if several and lru:
        over = [(run.hit_rate, lru.get((run.live, run.capacity_tokens))) for run in runs]
        columns["over lru"] = ["" if base is None else f"{100 * (rate - base):+.3f}" for rate, base in over]
    columns["belady"] = [f"{run.belady_hit_rate:.3%}" for run in runs]
    columns["ideal"] = [f"{run.ideal_hit_rate:.3%}" for run in runs]
    columns["evicted"] = [short_count(run.evicted_tokens) for run in runs]
    refused = any(run.refused_calls for run in runs)
    if refused:
        columns["too long"] = [f"{run.refused_calls:,}" for run in runs]
    columns["seconds"] = [f"{run.seconds:.2f}" for run in runs]
    columns["µs a call"] = [f"{run.us_per_call:.1f}" for run in runs]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    explained = (
        "hit rate: cached / input tokens. belady: of the best order of eviction at this capacity.\n"
        "ideal: of a cache that never forgets. evicted: tokens."
    )
    if several and lru:
        explained += " over lru: points of hit rate."
    if refused:
        explained += "\ntoo long: calls longer than the capacity, kept only as far as they fit."
    console.print(explained, style="dim", highlight=False)
