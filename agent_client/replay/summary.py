"""A run in figures: the keys of the JSON report. docs/replay.md says what each means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..verdicts import CAUSES
from .optimum import Stream, ideal_cached
from .percentiles import percentile
from .records import CallRecord, Run

MESSAGES_SHOWN = 5
# What a client times, the same for every server.
TIMES = ("wall_s", "ttft_p50_s", "ttft_first_p50_s", "ttft_later_p50_s", "ttft_later_p95_s", "itl_p50_s")


def summarise(run: Run) -> dict[str, Any]:
    """Everything the report says about one run, JSON-ready. Only finished calls count; errors are counted apart."""
    finished = [record for record in run.records if record.finished]
    ideal = _ideal(run.records)
    failed = [record for record in run.records if record.error is not None]
    inputs = sum(record.usage.prompt_tokens for record in finished)
    cached = sum(record.usage.cached_tokens for record in finished)
    ideal_cached = sum(ideal[id(record)] for record in finished)
    outputs = sum(record.usage.output_tokens for record in finished)
    ttfts = _ttfts(finished)
    itls = [itl for record in finished for itl in record.itls_s]
    first, later = _ttfts(_first_calls(finished)), _ttfts(_later_calls(finished))
    return {
        "name": run.name,
        "calls": len(finished),
        "sessions": len({record.session for record in finished}),
        "input_tokens": inputs,
        "cached_tokens": cached,
        "cached_tokens_by_tier": _by_tier(finished),
        "computed_tokens": sum(record.usage.computed_tokens for record in finished),
        "missed_tokens_by_cause": _missed_by_cause(finished),
        "hit_rate": ratio(cached, inputs),
        "ideal_cached_tokens": ideal_cached,
        "ideal_hit_rate": ratio(ideal_cached, inputs),
        "share_of_ideal": ratio(cached, ideal_cached),
        "output_tokens": outputs,
        "wall_s": run.wall_s,
        "ttft_p50_s": percentile(ttfts, 0.5),
        "ttft_p95_s": percentile(ttfts, 0.95),
        "ttft_p99_s": percentile(ttfts, 0.99),
        "ttft_first_p50_s": percentile(first, 0.5),
        "ttft_later_p50_s": percentile(later, 0.5),
        "ttft_later_p95_s": percentile(later, 0.95),
        "ttft_later_p99_s": percentile(later, 0.99),
        "itl_p50_s": percentile(itls, 0.5),
        "itl_p95_s": percentile(itls, 0.95),
        "itl_p99_s": percentile(itls, 0.99),
        "output_tokens_per_s": ratio(outputs, run.wall_s),
        "queue_s": sum(record.timing.queue_s for record in finished),
        "prefill_s": sum(record.timing.prefill_s for record in finished),
        "runtime_ttft_p50_s": percentile([record.timing.ttft_s for record in finished], 0.5),
        "saved_prefill_s": _saved_prefill_s(finished),
        "preemptions": run.preemptions,
        "evicted_tokens": run.evicted_tokens,
        "copied_tokens": run.copied_tokens,
        "errors": len(failed),
        "error_messages": [f"{r.session}, turn {r.turn}: {r.error}" for r in failed[:MESSAGES_SHOWN]],
        "skipped_calls": run.skipped_calls,
        "cut_sessions": run.cut_sessions,
        "interrupted": run.interrupted,
        "turns": _turns(finished, ideal),
    }


def ratios(base: dict[str, Any], cached: dict[str, Any]) -> dict[str, float | None]:
    """How many times less time and work the cached run took; for tokens per second, how many times more."""
    out = {key: ratio(base[key], cached[key]) for key in (*TIMES, "prefill_s", "computed_tokens")}
    return {**out, "output_tokens_per_s": ratio(cached["output_tokens_per_s"], base["output_tokens_per_s"])}


def _ideal(records: Sequence[CallRecord]) -> dict[int, int]:
    """Ideal cached tokens by record. A call that failed halfway made its prompt known all the same."""
    sent = [record for record in records if record.prompt_ids]
    streams = [
        Stream(r.prompt_ids.tobytes(), r.output_ids.tobytes(), r.started_s, r.ended_s if r.finished else None)
        for r in sent
    ]
    return {id(record): cached for record, cached in zip(sent, ideal_cached(streams), strict=True)}


def _saved_prefill_s(finished: Sequence[CallRecord]) -> float | None:
    """Cached tokens at the pace of this run's own cold calls; None when no call computed half of its prompt."""
    cold = [r for r in finished if r.usage.computed_tokens * 2 >= r.usage.prompt_tokens and r.usage.computed_tokens]
    if not cold:
        return None
    pace = sum(r.timing.prefill_s for r in cold) / sum(r.usage.computed_tokens for r in cold)
    return pace * sum(r.usage.cached_tokens for r in finished)


def _by_tier(finished: Sequence[CallRecord]) -> dict[str, int]:
    """Tiers that nothing was found in are left out."""
    found: Counter[str] = Counter()
    for record in finished:
        found.update(record.usage.cached_by_tier)
    return {tier: tokens for tier, tokens in found.items() if tokens}


def _missed_by_cause(finished: Sequence[CallRecord]) -> dict[str, int] | None:
    """None where no call came with a verdict: the cache was bypassed, or the runtime gives none."""
    verdicts = [record.verdict for record in finished if record.verdict is not None]
    if not verdicts:
        return None
    missed: Counter[str] = Counter()
    for verdict in verdicts:
        for span in verdict.missed():
            missed[span.cause] += span.tokens
    return {cause: missed[cause] for cause in CAUSES if cause in missed}


def _turns(finished: Sequence[CallRecord], ideal: dict[int, int]) -> list[dict[str, Any]]:
    by_turn: dict[int, list[CallRecord]] = {}
    for record in finished:
        by_turn.setdefault(record.turn, []).append(record)
    return [_turn(turn, by_turn[turn], ideal) for turn in sorted(by_turn)]


def _turn(turn: int, records: Sequence[CallRecord], ideal: dict[int, int]) -> dict[str, Any]:
    inputs = sum(record.usage.prompt_tokens for record in records)
    cached = sum(record.usage.cached_tokens for record in records)
    ttfts = _ttfts(records)
    return {
        "turn": turn,
        "calls": len(records),
        "input_tokens": inputs,
        "cached_tokens": cached,
        "computed_tokens": sum(record.usage.computed_tokens for record in records),
        "hit_rate": ratio(cached, inputs),
        "ideal_hit_rate": ratio(sum(ideal[id(record)] for record in records), inputs),
        "ttft_p50_s": percentile(ttfts, 0.5),
        "ttft_p95_s": percentile(ttfts, 0.95),
    }


def _first_calls(finished: Sequence[CallRecord]) -> list[CallRecord]:
    return [record for record in finished if record.turn == 1]


def _later_calls(finished: Sequence[CallRecord]) -> list[CallRecord]:
    return [record for record in finished if record.turn > 1]


def _ttfts(records: Sequence[CallRecord]) -> list[float]:
    return [record.ttft_s for record in records if record.ttft_s is not None]


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where one is unknown or nothing can be divided by."""
    return part / whole if part is not None and whole else None
