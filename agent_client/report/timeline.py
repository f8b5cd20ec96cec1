"""The loops of a run over time: a lane a session, its calls as bars, the pauses of its tools between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..replay.records import CallRecord, Run
from ..words import count, seconds
from .charts import Mark, Tick, span
from .scales import Axis

LANES_SHOWN = 40
CALLS_SHOWN = 1200
# Thinner than this, in percent of the width, nothing can be seen.
_THINNEST = 0.12


@dataclass(frozen=True)
class Lane:
    """One session or branch, `label` its id."""

    label: str
    calls: int
    cached: int
    prompt: int
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Timeline:
    """In percent of the time from the run's start to its end. `hidden_lanes` are sessions beyond those shown."""

    lanes: Sequence[Lane]
    columns: Sequence[Tick]
    hidden_lanes: int
    hidden_calls: int
    has_pauses: bool


def timeline(run: Run) -> Timeline:
    """Sessions in order of their first call."""
    by_session: dict[str, list[CallRecord]] = {}
    for record in run.records:
        by_session.setdefault(record.session, []).append(record)
    across = Axis(max([run.wall_s, *(r.ended_s for r in run.records if r.ended_s is not None)]) or 1.0)
    lanes: list[Lane] = []
    left = CALLS_SHOWN
    for session, records in by_session.items():
        if len(lanes) == LANES_SHOWN or left <= 0:
            break
        shown = records[:left]
        left -= len(shown)
        marks = [mark for record in shown for mark in _marks(record, across)]
        prompt = sum(r.usage.prompt_tokens for r in records)
        lanes.append(Lane(session, len(records), sum(r.usage.cached_tokens for r in records), prompt, marks))
    return Timeline(
        lanes,
        [Tick(across(tick), span(tick)) for tick in across.ticks(4)],
        hidden_lanes=len(by_session) - len(lanes),
        hidden_calls=len(run.records) - (CALLS_SHOWN - left),
        has_pauses=any(record.pause_s for record in run.records),
    )


def _marks(record: CallRecord, across: Axis) -> list[Mark]:
    began = record.started_s
    marks = []
    if record.pause_s:
        marks.append(_bar(across, began - record.pause_s, began, "pause", f"Tools: {seconds(record.pause_s)}"))
    name = f"Turn {count(record.turn)}"
    if record.ended_s is None:
        title = f"{name}: failed" if record.error else f"{name}: did not finish"
        return [*marks, _bar(across, began, began, "failed", title)]
    usage = record.usage
    first = record.ended_s if record.ttft_s is None else began + record.ttft_s
    found = f"{count(usage.cached_tokens)} of {count(usage.prompt_tokens)} prompt tokens found"
    marks.append(_bar(across, began, first, "computed", f"{name}: first token after {seconds(first - began)}; {found}"))
    wrote = f"{name}: {count(usage.output_tokens)} tokens written in {seconds(record.ended_s - first)}"
    marks.append(_bar(across, first, record.ended_s, "decode", wrote))
    return marks


def _bar(across: Axis, start: float, end: float, kind: str, title: str) -> Mark:
    left = across(max(0.0, start))
    return Mark(left, 0, max(_THINNEST, round(across(end) - left, 3)), 0, kind, title)
