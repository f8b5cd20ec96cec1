"""Runs as the driver would have noted them, made by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from agent_client.replay.records import CallRecord, Run
from agent_client.replay.summary import ratios, summarise
from agent_client.results import Timing, Usage
from agent_client.verdicts import Cause, Span, Verdict


def call(
    session: str,
    turn: int,
    prompt: Sequence[int],
    cached: int = 0,
    *,
    started_s: float = 0.0,
    cause: Cause = "never_seen",
    beside: Sequence[Sequence[int]] = (),
    **more: Any,
) -> CallRecord:
    """A call of half a second that wrote two tokens; its misses are all for one cause."""
    found = [Span(0, cached, "cached")] if cached else []
    missed = Span(cached, len(prompt), cause, beside=tuple(array("i", branch) for branch in beside))
    return CallRecord(
        **{
            "session": session,
            "turn": turn,
            "started_s": started_s,
            "ended_s": started_s + 0.5,
            "ttft_s": 0.3,
            "itls_s": [0.2],
            "prompt_ids": array("i", prompt),
            "output_ids": array("i", [7, 8]),
            "usage": Usage(len(prompt), cached, 2, len(prompt) - cached),
            "timing": Timing(prefill_s=0.2, ttft_s=0.25),
            "verdict": Verdict((*found, missed)),
            **more,
        }
    )


def loops(sessions: int = 3, turns: int = 4, size: int = 40) -> Run:
    """Sessions one after the other under one head of `size` tokens; each turn adds as many and finds all the rest."""
    records = []
    for session in range(sessions):
        prompt = list(range(size))
        for turn in range(turns):
            cached = 0 if session == turn == 0 else size * (turn + 1)
            prompt += [1000 + session * turns + turn] * size
            began = float(session * turns + turn)
            pause = 0.4 if turn else 0.0
            records.append(call(f"loop {session}", turn + 1, prompt, cached, started_s=began, pause_s=pause))
    return Run("cached", records, wall_s=float(sessions * turns))


def report_of(*runs: Run, **more: Any) -> dict[str, Any]:
    """As `experiment` returns it."""
    summaries = [summarise(run) for run in runs]
    return {
        "format": "radixloop-replay-report",
        "version": 1,
        "trace": "loops.jsonl",
        "trace_format": "radixloop-trace",
        "target": "here:1",
        "model": "toy",
        "kv_dtype": "fp32",
        "options": {"concurrency": 4, "live_replies": False, "seed": None},
        "template_drifts": [{"kind": "drops_reasoning", "detail": "leaves reasoning out", "message_index": 2}],
        "notes": [],
        "runs": summaries,
        "ratios": ratios(summaries[0], summaries[1]) if len(summaries) == 2 else None,
        **more,
    }
