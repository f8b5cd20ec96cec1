"""`agent-client replay`: a trace, a runtime, and where the report goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..access import Access
from ..aio import AsyncRadixClient
from ..replay import ReplayOptions, experiment
from ..replay.records import Run
from ..replay.tables import print_report
from ..traces import Trace, read_trace
from .failures import FAILED, INTERRUPTED, USAGE, reported, say
from .progress import bars, until_interrupted

if TYPE_CHECKING:
    from ..report import Material, Prices

SAMPLE = Path(__file__).parents[1] / "samples" / "repository.jsonl"


@dataclass(frozen=True)
class Page:
    """Where the HTML report goes, its prices, and what it needs of the runs as they end."""

    file: Path
    prices: Prices
    materials: list[Material]

    async def take(self, run: Run, decode: Callable[[Sequence[int]], Awaitable[str]]) -> None:
        from ..report import gather

        self.materials.append(await gather(run, decode))

    def write(self, report: dict[str, Any]) -> None:
        from ..report import render

        text = render(report, self.materials, self.prices, datetime.now().astimezone())
        self.file.write_text(text, encoding="utf-8")


@reported
def run(
    path: Path | None,
    target: str,
    options: ReplayOptions,
    *,
    format: str | None,
    per_turn: bool,
    json_file: str | None,
    html_file: Path | None = None,
    prices: Path | None = None,
    access: Access | None = None,
    **choices: Any,
) -> int:
    """`choices` go to `experiment`. Returns the exit code: 1 when a call failed, 130 when interrupted."""
    page = None
    if html_file is not None:
        page = _page(html_file, prices)
        if page is None:
            return USAGE
    path = path or SAMPLE
    trace = read_trace(path, format)
    for note in trace.notes:
        say(note)
    if options.tool_latency == "recorded" and not any(call.tool_latency_s for s in trace.sessions for call in s.calls):
        say("the trace has no recorded pauses: running without any")
    report = asyncio.run(until_interrupted(_replay(trace, target, access, options, page, title=path.name, **choices)))
    if report is None:
        return INTERRUPTED
    text = json.dumps(report, indent=2)
    if json_file == "-":
        print(text)
    else:
        print_report(Console(), report, per_turn)
        if json_file is not None:
            Path(json_file).write_text(text + "\n", encoding="utf-8")
    if page is not None:
        page.write(report)
    if any(summary["interrupted"] for summary in report["runs"]):
        return INTERRUPTED
    return FAILED if any(summary["errors"] for summary in report["runs"]) else 0


def _page(file: Path, prices: Path | None) -> Page | None:
    """None, and why on standard error, where no page could be written: known before minutes are spent on a replay."""
    try:
        from ..report import BadPrices, read_prices
    except ImportError as error:
        say(f"--html needs the package {error.name}: pip install 'radixloop[report]'")
        return None
    try:
        table = read_prices(prices)
        file.open("a").close()
    except (BadPrices, OSError) as error:
        say(str(error))
        return None
    return Page(file, table, [])


async def _replay(
    trace: Trace, target: str, access: Access | None, options: ReplayOptions, page: Page | None, **choices: Any
) -> dict[str, Any]:
    async with AsyncRadixClient(target, access=access) as client:

        async def decode(token_ids: Sequence[int]) -> str:
            return await client.detokenize(token_ids, keep_special_tokens=True)

        async def on_ran(run: Run) -> None:
            if page is not None:
                await page.take(run, decode)

        with bars() as hooks:
            return await experiment(client, trace, options, hooks=replace(hooks, on_ran=on_ran), **choices)
