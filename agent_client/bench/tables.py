"""A comparison's report for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..replay.tables import ROWS, Row, figures_table, print_failures
from ..words import counted, share

_SAME = Row("same outputs", lambda r: share(r["same_output_share"]))


def print_report(console: Console, report: dict[str, Any]) -> None:
    """Every target side by side, the first against each other one, then what went wrong."""
    targets = report["targets"]
    ratios = [(f"1 / {i}", against) for i, against in enumerate(report["ratios"], 2)]
    if len(ratios) > 1:
        ratios.append(("1 / best", report["ratios_to_best"]))
    for i, target in enumerate(targets, 1):
        console.print(Text(f"{i}: {target['name']}"))
    rows = [*(row for row in ROWS if not row.told), _SAME]
    columns = [(f"{i}: {target['kind']}", target) for i, target in enumerate(targets, 1)]
    console.print(figures_table(_title(report), columns, ratios, rows))
    for note in report["notes"]:
        console.print(Text(note))
    for target in targets:
        if target["skipped_calls"]:
            console.print(Text(f"{target['name']}: {counted(target['skipped_calls'], 'call')} not made"))
        print_failures(console, target["name"], target)


def _title(report: dict[str, Any]) -> str:
    options = report["options"]
    where = f"on {report['model']}" + ("" if options["use_cache"] else ", without the cache")
    if report["workload"] == "fan_out":
        shape = options["fan_out"]
        return f"{shape['branches']} branches of {shape['tail']:,} tokens over {shape['trunk']:,} {where}"
    return f"{report['trace']} {where}, {options['concurrency']} at a time"
