"""A replay's report for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..words import count, counted, seconds, share


class Row(NamedTuple):
    """`show` makes a run's cell, `key` names the ratio beside it, `told` those that only our runtime can tell."""

    label: str
    show: Callable[[dict[str, Any]], str]
    key: str | None = None
    told: bool = False


def _three(run: dict[str, Any], stem: str) -> str:
    return " / ".join(seconds(run[f"{stem}_{p}_s"]) for p in ("p50", "p95", "p99"))


ROWS = (
    Row("calls", lambda r: count(r["calls"])),
    Row("sessions", lambda r: count(r["sessions"])),
    Row("input tokens", lambda r: count(r["input_tokens"])),
    Row("  from the cache", lambda r: count(r["cached_tokens"])),
    Row("  computed", lambda r: count(r["computed_tokens"]), "computed_tokens"),
    Row("hit rate", lambda r: share(r["hit_rate"])),
    Row("  infinite cache", lambda r: share(r["ideal_hit_rate"])),
    Row("  share of that", lambda r: share(r["share_of_ideal"])),
    Row("output tokens", lambda r: count(r["output_tokens"])),
    Row("TTFT p50/p95/p99", lambda r: _three(r, "ttft"), "ttft_p50_s"),
    Row("  first calls p50", lambda r: seconds(r["ttft_first_p50_s"]), "ttft_first_p50_s"),
    Row("  later calls", lambda r: _three(r, "ttft_later"), "ttft_later_p50_s"),
    Row("ITL p50/p95/p99", lambda r: _three(r, "itl"), "itl_p50_s"),
    Row("output tokens/s", lambda r: f"{r['output_tokens_per_s'] or 0:,.1f}", "output_tokens_per_s"),
    Row("prefill, all calls", lambda r: seconds(r["prefill_s"]), "prefill_s", told=True),
    Row("  saved, about", lambda r: seconds(r["saved_prefill_s"]), told=True),
    Row("wall time", lambda r: seconds(r["wall_s"]), "wall_s"),
)


def figures_table(
    title: str,
    runs: Sequence[tuple[str, dict[str, Any]]],
    ratios: Sequence[tuple[str, Mapping[str, float | None]]],
    rows: Sequence[Row] = ROWS,
) -> Table:
    """Runs side by side under their headings, then columns of ratios."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in [heading for heading, _ in (*runs, *ratios)]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [row.show(run) for _, run in runs]
        for _, compared in ratios:
            ratio = compared.get(row.key) if row.key else None
            cells.append(f"{ratio:,.2f}x" if ratio is not None else "")
        table.add_row(row.label, *cells)
    return table


def print_report(console: Console, report: dict[str, Any], per_turn: bool) -> None:
    """The table of every run, side by side, then what went wrong, then the turns."""
    runs, compared = report["runs"], report["ratios"]
    title = f"{report['trace']} on {report['model']}"
    columns = [(run["name"].replace("_", " "), run) for run in runs]
    console.print(figures_table(title, columns, [("ratio", compared)] if compared else []))
    for run in runs:
        _print_troubles(console, run)
    for drift in report["template_drifts"]:
        console.print(Text(f"the chat template {drift['detail']}"))
    if per_turn:
        for run in runs:
            console.print(_turn_table(run, len(runs) > 1))


def _print_troubles(console: Console, run: dict[str, Any]) -> None:
    name = run["name"].replace("_", " ")
    by_cause = run["missed_tokens_by_cause"] or {}
    if by_cause:
        missed = ", ".join(f"{count(tokens)} {cause.replace('_', ' ')}" for cause, tokens in by_cause.items())
        console.print(f"{name}, missed tokens: {missed}")
    slower = found_in_tiers(run)
    if slower:
        console.print(f"{name}, found: {slower}")
    if run["skipped_calls"]:
        cut = run["cut_sessions"]
        beyond = f" ({counted(cut, 'session')} outgrew the context)" if cut else ""
        console.print(f"{name}: {counted(run['skipped_calls'], 'call')} not made{beyond}")
    if run["evicted_tokens"] or run["preemptions"]:
        preempted = counted(run["preemptions"], "preemption")
        console.print(f"{name}: {counted(run['evicted_tokens'], 'token')} evicted, {preempted}")
    print_failures(console, name, run)


def found_in_tiers(run: dict[str, Any]) -> str:
    """Where the cached tokens were; empty where all of them were in the pool."""
    found: dict[str, int] = run["cached_tokens_by_tier"]
    if not found.keys() - {"device"}:
        return ""
    places = {"device": "in the pool", "host": "in host memory", "disk": "on disk"}
    return ", ".join(f"{count(tokens)} {places.get(tier, tier)}" for tier, tokens in found.items())


def print_failures(console: Console, name: str, run: dict[str, Any]) -> None:
    """Whether a run was interrupted, and what its failed calls said."""
    if run["interrupted"]:
        console.print(Text(f"{name}: interrupted; the figures cover what had finished", style="yellow"))
    if run["errors"]:
        console.print(Text(f"{name}: {counted(run['errors'], 'call')} failed", style="bold red"))
        for message in run["error_messages"]:
            console.print(Text(f"  {message}"))


def _turn_table(run: dict[str, Any], named: bool) -> Table:
    title = f"By turn, {run['name'].replace('_', ' ')}" if named else "By turn"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    headings: Sequence[str] = ("turn", "calls", "input", "computed", "hit rate", "ideal", "TTFT p50", "TTFT p95")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for turn in run["turns"]:
        table.add_row(
            count(turn["turn"]),
            count(turn["calls"]),
            count(turn["input_tokens"]),
            count(turn["computed_tokens"]),
            share(turn["hit_rate"]),
            share(turn["ideal_hit_rate"]),
            seconds(turn["ttft_p50_s"]),
            seconds(turn["ttft_p95_s"]),
        )
    return table
