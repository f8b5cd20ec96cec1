"""`agent-client replay`: a trace, a runtime, and where the report goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from ..access import Access
from ..aio import AsyncRadixClient
from ..replay import ReplayOptions, experiment
from ..replay.tables import print_report
from ..traces import Trace, read_trace
from .failures import FAILED, INTERRUPTED, reported, say
from .progress import bars, until_interrupted

SAMPLE = Path(__file__).parents[1] / "samples" / "repository.jsonl"


@reported
def run(
    path: Path | None,
    target: str,
    options: ReplayOptions,
    *,
    format: str | None,
    per_turn: bool,
    json_file: str | None,
    access: Access | None = None,
    **choices: Any,
) -> int:
    """`choices` go to `experiment`. Returns the exit code: 1 when a call failed, 130 when interrupted."""
    path = path or SAMPLE
    trace = read_trace(path, format)
    for note in trace.notes:
        say(note)
    if options.tool_latency == "recorded" and not any(call.tool_latency_s for s in trace.sessions for call in s.calls):
        say("the trace has no recorded pauses: running without any")
    report = asyncio.run(_replay(trace, target, access, options, title=path.name, **choices))
    if report is None:
        return INTERRUPTED
    text = json.dumps(report, indent=2)
    if json_file == "-":
        print(text)
    else:
        print_report(Console(), report, per_turn)
        if json_file is not None:
            Path(json_file).write_text(text + "\n", encoding="utf-8")
    if any(summary["interrupted"] for summary in report["runs"]):
        return INTERRUPTED
    return FAILED if any(summary["errors"] for summary in report["runs"]) else 0


async def _replay(
    trace: Trace, target: str, access: Access | None, options: ReplayOptions, **choices: Any
) -> dict[str, Any] | None:
    """The report, or None when Ctrl-C came before the first run began."""
    return await until_interrupted(_connected(trace, target, access, options, **choices))


async def _connected(
    trace: Trace, target: str, access: Access | None, options: ReplayOptions, **choices: Any
) -> dict[str, Any]:
    async with AsyncRadixClient(target, access=access) as client:
        with bars() as hooks:
            return await experiment(client, trace, options, hooks=hooks, **choices)
