"""`agent-client replay`: progress while it runs, Ctrl-C, and where the report goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..aio import AsyncRadixClient
from ..replay import CallRecord, Hooks, ReplayOptions, experiment
from ..replay.tables import print_report
from ..traces import Trace, read_trace
from .failures import FAILED, INTERRUPTED, reported, say

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
    **choices: Any,
) -> int:
    """`choices` go to `experiment`. Returns the exit code: 1 when a call failed, 130 when interrupted."""
    path = path or SAMPLE
    trace = read_trace(path, format)
    for note in trace.notes:
        say(note)
    if options.tool_latency == "recorded" and not any(call.tool_latency_s for s in trace.sessions for call in s.calls):
        say("the trace has no recorded pauses: running without any")
    report = asyncio.run(_replay(trace, target, options, title=path.name, **choices))
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


async def _replay(trace: Trace, target: str, options: ReplayOptions, **choices: Any) -> dict[str, Any] | None:
    """The report, or None when Ctrl-C came before the first run began."""
    task = asyncio.ensure_future(_connected(trace, target, options, **choices))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # A second Ctrl-C is not caught any more.
        loop.remove_signal_handler(signal.SIGINT)
        task.cancel()

    # Where an event loop cannot take signals (Windows), Ctrl-C ends the command without a report.
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


async def _connected(trace: Trace, target: str, options: ReplayOptions, **choices: Any) -> dict[str, Any]:
    async with AsyncRadixClient(target) as client:
        with _progress() as progress:
            return await experiment(client, trace, options, hooks=_Bars(progress).hooks(), **choices)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class _Bars:
    """One bar a run, with the hit rate and the errors so far."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._inputs = self._cached = self._errors = 0

    def hooks(self) -> Hooks:
        return Hooks(self._on_run, self._on_call)

    def _on_run(self, name: str, calls: int) -> None:
        self._inputs = self._cached = self._errors = 0
        self._task = self._progress.add_task(name.replace("_", " "), total=calls, note="")

    def _on_call(self, record: CallRecord) -> None:
        if self._task is None:
            return
        self._inputs += record.usage.prompt_tokens
        self._cached += record.usage.cached_tokens
        self._errors += record.error is not None
        note = f"hit {self._cached / self._inputs:.1%}" if self._inputs else ""
        if self._errors:
            note += f" [red]{self._errors} failed[/red]"
        self._progress.update(self._task, advance=1, note=note)
