"""Who may be in when the programs that are live need more than the pool.

Call by call, least recently used, programs in excess of the pool evict each other's history in turn, and all of them
compute everything again. Kept waiting at the beginning of a call, some of them lose time and the others lose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter

from runtime.request import Run
from runtime.retention.tool_pauses import ToolPauses

# Programs grow after they were let in. At this share the simulated loops grew into the pool and seldom out of it.
_FILLED_SHARE = 0.7
# A program that has not come back within the time in which so many percent of the pauses were over is not waited for.
_PAUSE_PERCENTILE = 95.0
# And after so many times that long its place is forgotten, too.
_FORGOTTEN_AFTER = 20
# Callers name programs as they like, and each is looked at whenever one of them changes.
MAX_CLAIMS = 1024
_ANY_TOOL = ""


@dataclass(slots=True)
class _Claim:
    """What one program keeps between its calls.

    Attributes:
        place: in line; the lower has precedence.
        shared: leading tokens that its first call found cached, for which others are charged; None before that ran.
        tokens: of the longest call.
        waiting: when its calls that were not admitted came, oldest first.
        calls: those, and the ones that run.
        idle_since: when the last of them ended.
        over: no call follows those that are here.
    """

    place: int
    shared: int | None = None
    tokens: int = 0
    waiting: dict[Run, float] = field(default_factory=dict)
    calls: set[Run] = field(default_factory=set)
    idle_since: float = 0.0
    over: bool = False

    @property
    def own(self) -> int:
        return self.tokens - (self.shared or 0)


class ProgramDoor:
    """Holds calls back when what the live programs keep does not fit the pool together; those that came last wait.

    A program that grew is asked again at each of its calls, and those before it have precedence. Within a call nobody
    is held back. A door is no lock: the scheduler opens it when nothing runs, and every `wait_s` whoever has waited for
    so long, the longest first, goes to the front of the line; where `n` calls waited before it, it waits for
    (n + 1) * `wait_s` at most. One at a time: let in together, those that waited long would bring back what the door
    is there to prevent. Calls without a program go through.

    Args:
        capacity: tokens of the pool.
        wait_s: see above.
    """

    def __init__(self, capacity: int, clock: Callable[[], float], *, wait_s: float) -> None:
        self._capacity = _FILLED_SHARE * capacity
        self._clock = clock
        self._wait_s = wait_s
        # Between the calls of programs: so long is room kept for one that does not call.
        self._pauses = ToolPauses(_PAUSE_PERCENTILE)
        self._claims: dict[Hashable, _Claim] = {}
        self._back = count()
        self._front = count(-1, -1)
        self._promoted_at = -math.inf
        self._in: set[Hashable] = set()
        self._valid_until = -math.inf

    def arrived(self, run: Run) -> None:
        """A call joins the queue."""
        name = run.request.job.program
        if name is None:
            return
        claim = self._claims.get(name)
        if claim is None:
            self._make_place()
            claim = self._claims[name] = _Claim(next(self._back))
        elif not claim.calls:
            self._pauses.record(_ANY_TOOL, self._clock() - claim.idle_since)
        claim.calls.add(run)
        claim.waiting[run] = self._clock()
        self._grew(claim, run)

    def admitted(self, run: Run, cached: int) -> None:
        """A call was let in and found room; `cached` leading tokens were cached."""
        claim = self._claim(run)
        if claim is not None and claim.waiting.pop(run, None) is not None and claim.shared is None:
            claim.shared = cached
            self._grew(claim, run)

    def left(self, run: Run) -> None:
        """A call ended."""
        claim = self._claim(run)
        if claim is not None and run in claim.calls:
            claim.waiting.pop(run, None)
            claim.calls.remove(run)
            claim.idle_since = self._clock()
            self._grew(claim, run)
            if (run.request.job.ends_program or claim.over) and not claim.calls:
                del self._claims[run.request.job.program]

    def ended(self, program: Hashable) -> None:
        """No call of the program follows: its room is given away once those that are here end."""
        claim = self._claims.get(program)
        if claim is None:
            return
        self._valid_until = -math.inf
        if claim.calls:
            claim.over = True
        else:
            del self._claims[program]

    def holds_back(self, run: Run) -> bool:
        """Whether a waiting call shall not be admitted now."""
        claim = self._claim(run)
        if claim is None or run not in claim.waiting:
            return False
        now = self._clock()
        if now >= self._valid_until:
            self._work_out(now)
        return run.request.job.program not in self._in

    def _claim(self, run: Run) -> _Claim | None:
        name = run.request.job.program
        return None if name is None else self._claims.get(name)

    def _make_place(self) -> None:
        """Forget the program that has been idle for longest, where as many are known as may be."""
        if len(self._claims) >= MAX_CLAIMS:
            idle = [(claim.idle_since, name) for name, claim in self._claims.items() if not claim.calls]
            if idle:
                del self._claims[min(idle, key=itemgetter(0))[1]]

    def _grew(self, claim: _Claim, run: Run) -> None:
        claim.tokens = max(claim.tokens, run.known)
        self._valid_until = -math.inf

    def _work_out(self, now: float) -> None:
        """Forget who stayed away, and find who is in until something changes."""
        keeps_s = self._pauses.expected_s(_ANY_TOOL)
        idle = {name: claim.idle_since for name, claim in self._claims.items() if not claim.calls}
        for name, since in idle.items():
            if since + _FORGOTTEN_AFTER * keeps_s <= now:
                del self._claims[name]
        away = {name for name, since in idle.items() if since + keeps_s <= now}
        self._find_in(away)
        if now >= self._promoted_at + self._wait_s:
            longest = min(
                (claim for name, claim in self._claims.items() if claim.waiting and name not in self._in),
                key=_came,
                default=None,
            )
            if longest is not None and now >= _came(longest) + self._wait_s:
                longest.place = next(self._front)
                self._promoted_at = now
                self._find_in(away)
        outside = [_came(claim) for name, claim in self._claims.items() if claim.waiting and name not in self._in]
        promotes = max(min(outside), self._promoted_at) + self._wait_s if outside else math.inf
        self._valid_until = min([promotes, *(since + keeps_s for name, since in idle.items() if name not in away)])

    def _find_in(self, away: set[Hashable]) -> None:
        self._in = set()
        total = 0
        for name, claim in sorted(self._claims.items(), key=lambda item: item[1].place):
            if name in away:
                continue
            total += claim.own
            if total <= self._capacity or not self._in:
                self._in.add(name)


def _came(claim: _Claim) -> float:
    return next(iter(claim.waiting.values()))
