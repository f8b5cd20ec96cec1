"""What the driver notes about each call."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ..results import Timing, Usage
from ..verdicts import Verdict


@dataclass
class CallRecord:
    """One call. Times are seconds since the run's start, as the client saw them.

    `turn` counts from 1; a branch goes on from the turn that it left. `pause_s` is how long the driver waited before
    the call, as tools would have it wait.
    """

    session: str
    turn: int
    started_s: float
    pause_s: float = 0.0
    ended_s: float | None = None
    ttft_s: float | None = None
    itls_s: list[float] = field(default_factory=list)
    prompt_ids: array[int] = field(default_factory=lambda: array("i"))
    output_ids: array[int] = field(default_factory=lambda: array("i"))
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    verdict: Verdict | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.ended_s is not None and self.error is None


@dataclass
class Run:
    """Every call of one pass over the trace, in order of start."""

    name: str
    records: list[CallRecord] = field(default_factory=list)
    wall_s: float = 0.0
    # Calls that were not made: over the context limit, or after a failed call of their session.
    skipped_calls: int = 0
    cut_sessions: int = 0
    interrupted: bool = False
    # What the runtime counted meanwhile, in tokens (preemptions: requests).
    evicted_tokens: int = 0
    copied_tokens: int = 0
    preemptions: int = 0

    def extend(self, later: Run) -> None:
        """Takes over the calls of a pass that came after this one, as if it had begun when this one ended."""
        for record in later.records:
            record.started_s += self.wall_s
            if record.ended_s is not None:
                record.ended_s += self.wall_s
        self.records += later.records
        self.wall_s += later.wall_s
        self.skipped_calls += later.skipped_calls
        self.cut_sessions += later.cut_sessions
        self.interrupted = self.interrupted or later.interrupted
        self.evicted_tokens += later.evicted_tokens
        self.copied_tokens += later.copied_tokens
        self.preemptions += later.preemptions
