"""`radix bench`: options, progress and table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from radix.cli_values import policies_named
from radix.errors import InvalidArgument
from radix.output import JSON_HELP, check_json_target, write_json
from radix.sizes import parse_tokens


def bench(
    leaves: Annotated[str, typer.Option(metavar="N,N,...", help="Tree sizes for eviction, in leaves.")] = "1k,10k,100k",
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="Eviction policies; 'all' measures every one.")
    ] = "all",
    tree_tokens: Annotated[str, typer.Option(metavar="N", help="Size of the tree for bytes a token.")] = "10M",
    bare: Annotated[bool, typer.Option("--bare", help="Only the store without books; half the time.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="TRACE", show_default=False, help="Also time the simulation of this trace at 1M tokens."),
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Measure the prefix store in this process: match, open, commit, fork, close, evict, and bytes a token.

    Every figure comes twice: of the store alone, and with the books that the runtime has it keep (changes for Redis, KV
    events, the history behind miss verdicts). Times are medians in microseconds but for match, in nanoseconds a token.
    All of it takes some minutes.

    Examples:

        radix bench

        radix bench --leaves 1k,10k --policy lru,agent --bare --json -
    """
    from rich.console import Console

    from radix import bench as measure

    check_json_target(json)
    sizes = _leaves(leaves)
    policies = policies_named([policy])
    tokens = _tokens(tree_tokens, "--tree-tokens")
    console = Console(stderr=True)
    result: dict[str, Any] = {"machine": measure.machine()}
    with console.status("measuring") if console.is_terminal else nullcontext() as status:

        def show(step: str) -> None:
            if status is not None:
                status.update(step)

        result |= measure.run(sizes, policies, tree_tokens=tokens, on_step=show)
        if not bare:
            result["as_runtime"] = measure.run(
                sizes, policies, full=True, tree_tokens=tokens, on_step=lambda step: show(f"with books: {step}")
            )
        if trace is not None:
            show(f"simulating {trace.name}")
            result["simulate"] = _simulate(trace)
    if json is not None:
        write_json(json, result)
    if json != "-":
        _print_tables(Console(), result)


def _leaves(text: str) -> list[int]:
    sizes = [_tokens(part, "--leaves") for part in text.split(",")]
    if min(sizes) < 4:
        raise typer.BadParameter(f"{min(sizes)} is too few: at least 4", param_hint="--leaves")
    return list(dict.fromkeys(sizes))


def _tokens(text: str, option: str) -> int:
    try:
        return parse_tokens(text)
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint=option) from None


def _simulate(file: Path) -> dict[str, Any]:
    from radix.simulate import ideal, simulate
    from radix.traces import read_trace

    trace = read_trace(file)
    unit = trace.unit if not trace.has_tokens else 16
    run = simulate(trace, 1_000_000, best=ideal(trace, unit), block_size=unit)
    return {
        "trace": file.name,
        "calls": run.calls,
        "input_tokens": run.input_tokens,
        "seconds": run.seconds,
        "us_per_call": run.us_per_call,
    }


def _print_tables(console: Any, result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns = {"store alone": result}
    if "as_runtime" in result:
        columns["as the runtime has it"] = result["as_runtime"]
    machine = result["machine"]
    console.print(
        f"\n{machine['cpu']}, {machine['system']}, Python {machine['python']}, NumPy {machine['numpy']}; one thread",
        highlight=False,
    )
    figures = Table("", *columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in figures.columns[1:]:
        column.justify = "right"
    for name, value in _figures(result):
        figures.add_row(name, *(value(of) for of in columns.values()))
    console.print(figures)
    first = result["operations_us"][0]
    parts = [name for name in first if name not in {"history", "branches"}]
    operations = Table("history", "branches", *parts, box=SIMPLE_HEAD, pad_edge=False)
    for column in operations.columns:
        column.justify = "right"
    for row in result["operations_us"]:
        operations.add_row(f"{row['history']:,}", str(row["branches"]), *(f"{row[part]:.1f}" for part in parts))
    console.print("µs an operation, store alone, by tokens of history and places where others branch off", style="dim")
    console.print(operations)
    if "simulate" in result:
        ran = result["simulate"]
        console.print(
            f"{ran['trace']}: {ran['calls']:,} calls, {ran['input_tokens']:,} input tokens at a capacity of 1,000,000: "
            f"{ran['seconds']:.1f} s, {ran['us_per_call']:.0f} µs a call",
            highlight=False,
        )


def _figures(result: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [
        ("match, 120,000 tokens on one path, ns a token", lambda of: f"{of['match_ns_per_token']:.2f}"),
        ("match, 32,000 tokens in 500 turns, µs", lambda of: f"{of['match_500_turns_us']:.1f}"),
        ("turn of 300 tokens on 100,000, µs", lambda of: f"{of['turn_us']:.0f}"),
    ]
    for part in result["turn_parts_us"]:
        rows.append((f"  {part}", lambda of, part=part: f"{of['turn_parts_us'][part]:.1f}"))
    for policy, by_leaves in result["evict_us"].items():
        for count in by_leaves:
            name = f"evict a block, {policy}, {int(count):,} leaves, µs"
            rows.append((name, lambda of, policy=policy, count=count: f"{of['evict_us'][policy][count]:.1f}"))
    size = f"{result['memory']['tokens']:,} tokens in {result['memory']['nodes']:,} nodes"
    rows.append((f"bytes a token, {size}", lambda of: f"{of['bytes_per_token']:.2f}"))
    return rows
