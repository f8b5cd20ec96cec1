"""`agent-client bench`: a trace, several servers, and where the report goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..access import Access
from ..aio import AsyncRadixClient
from ..bench import BenchOptions, TargetSpec, bench, open_targets, parse_target
from ..bench.tables import print_report
from ..errors import InvalidArgument
from ..traces import Trace, read_trace
from .failures import FAILED, INTERRUPTED, reported, say
from .progress import bars, until_interrupted
from .replay import SAMPLE


@reported
def run(
    path: Path | None,
    targets: Sequence[str],
    options: BenchOptions,
    *,
    tokenizer: str | None,
    format: str | None,
    json_file: str | None,
    access: Access | None = None,
) -> int:
    """Returns the exit code: 1 when a call failed, 130 when interrupted."""
    path = path or SAMPLE
    specs = [parse_target(target) for target in targets]
    runtimes = [spec.address for spec in specs if spec.kind == "radix"]
    if tokenizer is None and not runtimes:
        raise InvalidArgument("no target is a runtime of ours: name one with --tokenizer to tokenise the trace")
    trace = read_trace(path, format)
    for note in trace.notes:
        say(note)
    comparison = _compare(tokenizer or runtimes[0], specs, trace, options, title=path.name, access=access)
    report = asyncio.run(until_interrupted(comparison))
    if report is None:
        return INTERRUPTED
    text = json.dumps(report, indent=2)
    if json_file == "-":
        print(text)
    else:
        print_report(Console(), report)
        if json_file is not None:
            Path(json_file).write_text(text + "\n", encoding="utf-8")
    if any(target["interrupted"] for target in report["targets"]):
        return INTERRUPTED
    return FAILED if any(target["errors"] for target in report["targets"]) else 0


async def _compare(
    tokenizer: str,
    specs: Sequence[TargetSpec],
    trace: Trace,
    options: BenchOptions,
    *,
    title: str,
    access: Access | None,
) -> dict[str, Any]:
    async with AsyncRadixClient(tokenizer, access=access) as client, open_targets(specs, access) as targets:
        with bars() as hooks:
            return await bench(client, targets, trace, options, title=title, hooks=hooks)
