"""Closed loop: so many sessions live at once, each with its recorded gaps, as a trace in a new order.

The clock is virtual. A call begins as long after its session did as was recorded, those of subagents among them; when
the last call of a session ends, the next session of the trace takes its place. What the cache holds changes no time, so
the order is the same at every capacity and under every policy, and an optimum can be found for it.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import groupby

from radix.errors import InvalidArgument
from radix.trace_formats import Call, Trace


def interleave(trace: Trace, live: int) -> Trace:
    """Return `trace` with its calls in the order in which `live` sessions side by side would make them.

    Raises:
        InvalidArgument: `live` below 1, or calls whose session or time is not recorded.
    """
    if live < 1:
        raise InvalidArgument(f"live is {live}: it must be at least 1")
    sessions = _sessions(trace)
    # Sessions that run, by the time of their next call; ties go to the one that came first.
    running: list[tuple[float, int, int]] = []
    waiting = iter(range(len(sessions)))
    began: dict[int, float] = {}
    ends: dict[int, float] = {}

    def start(now: float) -> None:
        session = next(waiting, None)
        if session is not None:
            began[session] = ends[session] = now
            heapq.heappush(running, (now + _at(sessions[session][0]), session, 0))

    for _ in range(live):
        start(0.0)
    calls: list[Call] = []
    while running:
        now, session, index = heapq.heappop(running)
        own = sessions[session]
        if index == len(own):
            start(now)
            continue
        call = own[index]
        calls.append(call)
        ends[session] = max(ends[session], now + call.seconds)
        following = began[session] + _at(own[index + 1]) if index + 1 < len(own) else ends[session]
        heapq.heappush(running, (following, session, index + 1))
    return replace(trace, calls=calls)


def _sessions(trace: Trace) -> list[list[Call]]:
    """Return each session's calls in the order of their times; calls at one time stay in file order."""
    untimed = next((i for i, call in enumerate(trace.calls, 1) if call.session is None or call.at is None), None)
    if untimed is not None:
        raise InvalidArgument(
            f"live: {trace.file} does not tell the session and time of call {untimed}, so its sessions cannot be "
            "run side by side"
        )
    by_session = sorted(trace.calls, key=lambda call: (call.session, call.at))
    return [list(calls) for _, calls in groupby(by_session, key=lambda call: call.session)]


def _at(call: Call) -> float:
    assert call.at is not None
    return call.at
