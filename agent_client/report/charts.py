"""A run as pictures: every place is worked out here, the template only draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..replay.percentiles import percentile
from ..replay.records import CallRecord, Run
from ..words import count, seconds, share
from .scales import Axis, round_end, spread

TURNS_SHOWN = 100
POINTS_SHOWN = 600
ITL_BARS = 32
_TICKS = 4
_TURN_TICKS = 10


@dataclass(frozen=True)
class Tick:
    """`at` is a percentage on a horizontal axis, pixels on a vertical one."""

    at: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A bar, a point or a line's place; `kind` is its class in the style sheet, `title` what pointing at it tells."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True)
class Chart:
    """`height` in pixels, with the row of labels below the plot. Positions across are percentages."""

    height: float
    rows: Sequence[Tick]
    columns: Sequence[Tick]
    marks: Sequence[Mark]
    across: str
    left_out: int = 0

    @property
    def base(self) -> float:
        return self.height - _LABELS


_LABELS = 22.0
_TOP = 8.0
_HEIGHT = 210.0


def _vertical(end: float) -> Axis:
    """From the plot's base upwards."""
    base = _HEIGHT - _LABELS
    return Axis(end, -(base - _TOP), base)


def hit_rate_by_turn(turns: Sequence[dict[str, Any]]) -> Chart:
    """A bar for what was found, a line across it for what an endless cache would have found."""
    shown = turns[:TURNS_SHOWN]
    up = _vertical(1.0)
    marks = []
    for i, turn in enumerate(shown):
        left, width = _slot(i, len(shown))
        hit, ideal = turn["hit_rate"] or 0.0, turn["ideal_hit_rate"] or 0.0
        title = f"Turn {count(turn['turn'])}: {share(hit)} found, {share(ideal)} at best"
        marks.append(Mark(left, up(hit), width, round(up(0) - up(hit), 3), "cached", title))
        marks.append(Mark(round(left - width * 0.12, 3), up(ideal), round(width * 1.24, 3), 0, "ideal", title))
    rows = [Tick(up(tick), f"{tick:.0%}") for tick in up.ticks(_TICKS)]
    return Chart(_HEIGHT, rows, _turn_ticks(shown), marks, "turn", len(turns) - len(shown))


def tokens_by_turn(turns: Sequence[dict[str, Any]]) -> Chart:
    """What was found in the cache, and on top of it what was computed."""
    shown = turns[:TURNS_SHOWN]
    up = _vertical(round_end(max((turn["input_tokens"] for turn in shown), default=0), _TICKS))
    marks = []
    for i, turn in enumerate(shown):
        left, width = _slot(i, len(shown))
        cached, computed = turn["cached_tokens"], turn["computed_tokens"]
        title = f"Turn {count(turn['turn'])}: {count(cached)} tokens found, {count(computed)} computed"
        top = up(cached + computed)
        marks.append(Mark(left, up(cached), width, round(up(0) - up(cached), 3), "cached", title))
        marks.append(Mark(left, top, width, round(up(cached) - top, 3), "computed", title))
    rows = [Tick(up(tick), short(tick)) for tick in up.ticks(_TICKS)]
    return Chart(_HEIGHT, rows, _turn_ticks(shown), marks, "turn", len(turns) - len(shown))


def ttft_by_length(runs: Sequence[Run]) -> Chart:
    """A point a call: how long its prompt is, and how long its first token took. Cold calls computed half or more."""
    calls = [(run, record) for run in runs for record in run.records if record.finished and record.ttft_s is not None]
    chosen = [calls[i] for i in spread(len(calls), POINTS_SHOWN)]
    over = Axis(max((record.usage.prompt_tokens for _, record in calls), default=0), 94, 3)
    up = _vertical(round_end(max((record.ttft_s or 0 for _, record in calls), default=0), _TICKS))
    marks = [
        Mark(over(record.usage.prompt_tokens), up(record.ttft_s or 0), 0, 0, _heat(run, record), _call_title(record))
        for run, record in chosen
    ]
    rows = [Tick(up(tick), span(tick)) for tick in up.ticks(_TICKS)]
    columns = [Tick(over(tick), short(tick)) for tick in over.ticks(_TICKS)]
    return Chart(_HEIGHT, rows, columns, marks, "prompt tokens", len(calls) - len(chosen))


def _heat(run: Run, record: CallRecord) -> str:
    if run.name == "no_cache":
        return "base"
    return "computed" if record.usage.computed_tokens * 2 >= record.usage.prompt_tokens else "cached"


def itl_distribution(run: Run) -> Chart:
    """How often the gap between two tokens was how long. The slowest percent is left out, so that the rest shows."""
    gaps = [gap for record in run.records if record.finished for gap in record.itls_s]
    highest = percentile(gaps, 0.99) or 0.0
    over = Axis(round_end(highest, _TICKS), 94, 3)
    heights = [0] * ITL_BARS
    left_out = 0
    for gap in gaps:
        place = int(gap / over.end * ITL_BARS)
        if place < ITL_BARS:
            heights[place] += 1
        else:
            left_out += 1
    up = _vertical(round_end(max(heights), _TICKS))
    width = over.length / ITL_BARS
    marks = []
    for i, height in enumerate(heights):
        if height:
            low, high = over.end * i / ITL_BARS, over.end * (i + 1) / ITL_BARS
            title = f"{seconds(low)} to {seconds(high)}: {count(height)}"
            left = round(over.offset + i * width + width * 0.06, 3)
            marks.append(Mark(left, up(height), round(width * 0.88, 3), round(up(0) - up(height), 3), "decode", title))
    rows = [Tick(up(tick), short(tick)) for tick in up.ticks(_TICKS)]
    columns = [Tick(over(tick), span(tick)) for tick in over.ticks(_TICKS)]
    return Chart(_HEIGHT, rows, columns, marks, "between two tokens", left_out)


def _slot(index: int, slots: int) -> tuple[float, float]:
    """Left edge and width of a bar, in percent."""
    pitch = 100 / max(slots, 1)
    width = min(pitch * 0.72, 9.0)
    return round(pitch * (index + 0.5) - width / 2, 3), round(width, 3)


def _turn_ticks(turns: Sequence[dict[str, Any]]) -> list[Tick]:
    step = -(-len(turns) // _TURN_TICKS) or 1
    return [Tick(round(100 / len(turns) * (i + 0.5), 3), count(turns[i]["turn"])) for i in range(0, len(turns), step)]


def _call_title(record: CallRecord) -> str:
    usage = record.usage
    return (
        f"{clipped(record.session)}, turn {count(record.turn)}: {count(usage.prompt_tokens)} prompt tokens, "
        f"{count(usage.computed_tokens)} computed, first token after {seconds(record.ttft_s)}"
    )


def clipped(name: str, most: int = 60) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def short(value: float) -> str:
    """As an axis has room for: 1.5 k, 20 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def span(value: float) -> str:
    """A round number of seconds, as an axis has room for."""
    if value < 1:
        return f"{value * 1000:.3g} ms" if value else "0"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.3g} min"
