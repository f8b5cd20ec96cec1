"""What a comparison found: each target in figures, and the first against the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..replay.records import CallRecord, Run
from ..replay.summary import TIMES, ratio, summarise
from .targets import Target
from .wire import UNKNOWN_TOKEN

REPORT_VERSION = 1

# Figures of a summary that only our own runtime tells.
_RUNTIME_ONLY = (
    *("missed_tokens_by_cause", "preemptions", "evicted_tokens", "copied_tokens", "turns"),
    *("queue_s", "prefill_s", "runtime_ttft_p50_s", "saved_prefill_s"),
)
_FROM_CACHE = ("cached_tokens", "computed_tokens", "hit_rate", "share_of_ideal")


def report_of(
    results: Sequence[tuple[Target, list[Run]]],
    *,
    title: str,
    model: str,
    workload: str,
    options: dict[str, Any],
    notes: Sequence[str],
) -> dict[str, Any]:
    """`results` are the targets with their turns, the one that is compared with the others first."""
    told = list(notes)
    figures = []
    outputs = [_outputs(turns) for _, turns in results]
    for (target, turns), own in zip(results, outputs, strict=True):
        figures.append({**_figures(target, turns), "same_output_share": _same(own, outputs[0])})
        if not target.counts_cache:
            told.append(f"{target.name} does not tell how much of a prompt was cached; its hit rate is unknown")
    first, others = figures[0], figures[1:]
    return {
        "format": "radixloop-bench-report",
        "version": REPORT_VERSION,
        "trace": title,
        "model": model,
        "workload": workload,
        "options": options,
        "notes": told,
        "targets": figures,
        "ratios": [{"name": other["name"], **_against(first, [other])} for other in others],
        "ratios_to_best": _against(first, others) if others else None,
    }


def _figures(target: Target, turns: Iterable[Run]) -> dict[str, Any]:
    walls = [run.wall_s for run in turns]
    whole = Run(target.name)
    for run in turns:
        whole.extend(run)
    summary = {key: value for key, value in summarise(whole).items() if key not in _RUNTIME_ONLY}
    if not target.counts_cache:
        summary.update(dict.fromkeys(_FROM_CACHE))
    return {**summary, "kind": target.spec.kind, "turn_wall_s": walls}


def _against(first: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The first's times as parts of the shortest of the others', its pace as a multiple of their highest."""
    out = {}
    for key in (*TIMES, "output_tokens_per_s"):
        known = [other[key] for other in others if other[key] is not None]
        best = max(known, default=None) if key == "output_tokens_per_s" else min(known, default=None)
        out[key] = ratio(first[key], best)
    return out


def _outputs(turns: Iterable[Run]) -> dict[tuple[int, str, int], CallRecord]:
    """Finished calls by turn of the comparison, session and call."""
    return {(i, r.session, r.turn): r for i, run in enumerate(turns) for r in run.records if r.finished}


def _same(own: dict[tuple[int, str, int], CallRecord], first: dict[tuple[int, str, int], CallRecord]) -> float | None:
    """The share of calls that wrote the very tokens that the first target's did, of those whose ids were all told."""
    both = [(own[key], first[key]) for key in own.keys() & first.keys()]
    told = [pair for pair in both if all(_told_all(record) for record in pair)]
    return ratio(sum(a.output_ids == b.output_ids for a, b in told), len(told))


def _told_all(record: CallRecord) -> bool:
    return len(record.output_ids) == record.usage.output_tokens and UNKNOWN_TOKEN not in record.output_ids
