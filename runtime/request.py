"""A request inside the engine, and the runs (one a choice) that the scheduler moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from radix import Namespace, Promotion, Sequence, Verdict
from runtime.drafting.draft_control import RunRecord
from runtime.drafting.drafts import Draft
from runtime.events import Event, RequestRecord, Timing, Usage
from runtime.grammar import JobGrammar
from runtime.sampling.choice_output import ChoiceOutput
from runtime.sampling.sampler import TokenSampler
from runtime.sampling.sampling_params import SamplingParams
from runtime.scheduling.programs import Program

if TYPE_CHECKING:
    from runtime.tiers.load import Load


@dataclass(frozen=True)
class GenerateJob:
    """What to run.

    Attributes:
        tokens: int32[n], n >= 1, the whole prompt.
        bypass_cache: neither read from the cache nor add to it.
        public_tokens: so many leading tokens may be shared with every salt of the namespace.
        priority: for the order and the eviction policy of that name.
        prefill_only: compute the prompt's KV and generate nothing.
        program: what the call belongs to, by any name: calls of one program share its turn (`scheduling_order`).
            None makes the call a program of its own, which attained what is cached of its prompt when it comes.
        ends_program: no further call of that program is expected.
        grammar: what the text of each choice must be; None leaves it to the model.
        verdict_within_namespace: the verdict knows of no other namespace.
    """

    request_id: str
    tokens: NDArray[np.int32]
    namespace: Namespace
    sampling: SamplingParams = field(default_factory=SamplingParams)
    bypass_cache: bool = False
    public_tokens: int = 0
    priority: int = 0
    prefill_only: bool = False
    program: Hashable | None = None
    ends_program: bool = False
    grammar: JobGrammar | None = None
    verdict_within_namespace: bool = False


class Request:
    """A submitted job with its books. Only the engine thread writes to it, but for `cancelled`."""

    def __init__(self, job: GenerateJob, max_tokens: int, on_events: Callable[[list[Event]], None]) -> None:
        self.job = job
        self.max_tokens = max_tokens
        self.on_events = on_events
        self.cancelled = False
        self.runs: list[Run] = []
        self.arrived = time.monotonic()
        self.admitted: float | None = None
        self.prefilled: float | None = None
        self.first_token: float | None = None
        self.cached_tokens = 0
        self.host_tokens = 0
        self.disk_tokens = 0
        self.promotion: Promotion | None = None
        self.verdict: Verdict | None = None
        self.computed_tokens = 0
        self.preemptions = 0
        self.itls: list[float] = []
        self.ended = False

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.tokens)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=sum(len(run.output.token_ids) for run in self.runs),
            computed_tokens=self.computed_tokens,
            host_tokens=self.host_tokens,
            disk_tokens=self.disk_tokens,
        )

    def timing(self) -> Timing:
        """Seconds so far; a stage that was not reached counts up to now."""
        now = time.monotonic()
        admitted = self.admitted if self.admitted is not None else now
        prefilled = self.prefilled if self.prefilled is not None else now
        first = self.first_token if self.first_token is not None else now
        p50, p95, p99 = np.percentile(self.itls, [50, 95, 99]).tolist() if self.itls else (0.0, 0.0, 0.0)
        return Timing(
            queue_s=admitted - self.arrived,
            prefill_s=prefilled - admitted,
            ttft_s=first - self.arrived,
            itl_p50_s=p50,
            itl_p95_s=p95,
            itl_p99_s=p99,
            total_s=now - self.arrived,
            preemptions=self.preemptions,
        )

    def record(self, outcome: str) -> RequestRecord:
        return RequestRecord(self.usage(), self.timing(), tuple(self.itls), outcome)


@dataclass(slots=True)
class Place:
    """Where a run stands among others, from its arrival to its end. Belongs to the scheduler.

    Attributes:
        ticket: counts arrivals.
        rank: by the scheduling order; the lower goes first.
        program: what the call belongs to; None where it has no name, and nobody asked.
        resumed: it ran before and was preempted.
        leader: the run found last to compute a part of this one's prefix, up to position `shared`.
    """

    ticket: int = 0
    rank: tuple[int, ...] = ()
    program: Program | None = None
    resumed: bool = False
    leader: Run | None = None
    shared: int = 0

    @property
    def waits_for_leader(self) -> bool:
        """Whether that leader still runs and has not got as far yet."""
        leader = self.leader
        return leader is not None and leader.seq is not None and leader.seq.length < self.shared


class Run:
    """One choice of a request: its tokens, and its open sequence while it is admitted."""

    __slots__ = (
        "_tokens",
        "done",
        "draft",
        "draft_record",
        "grammar",
        "known",
        "last_token_at",
        "load",
        "output",
        "place",
        "request",
        "sampler",
        "seq",
    )

    def __init__(self, request: Request, sampler: TokenSampler, output: ChoiceOutput) -> None:
        self.request = request
        self.sampler = sampler
        self.output = output
        self.grammar = None if request.job.grammar is None else request.job.grammar.start()
        self.seq: Sequence | None = None
        # What slower tiers owe to it, while it waits.
        self.load: Load | None = None
        self.place = Place()
        self.done = False
        self.last_token_at: float | None = None
        prompt = request.job.tokens
        self._tokens = np.empty(len(prompt) + request.max_tokens, dtype=np.int32)
        self._tokens[: len(prompt)] = prompt
        # Tokens that are decided: the prompt and what was sampled.
        self.known = len(prompt)
        # What the next forward pass computes behind the last known token, on trial.
        self.draft: Draft | None = None
        self.draft_record = RunRecord(greedy=request.job.sampling.temperature == 0)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32[known]: prompt and output so far."""
        return self._tokens[: self.known]

    def append(self, token_id: int) -> None:
        """Take the next token. Raises EngineFailed where the run's grammar does not allow it."""
        if self.grammar is not None:
            self.grammar.accept(token_id)
        self._tokens[self.known] = token_id
        self.known += 1

    @property
    def drafted(self) -> int:
        return 0 if self.draft is None else len(self.draft.tokens)

    def drafted_tokens(self) -> list[int]:
        return [] if self.draft is None else self.draft.tokens.tolist()

    def ahead(self, n: int) -> NDArray[np.int32]:
        """int32[n + drafted]: the next `n` uncomputed tokens, and the draft, which stands behind the last of them."""
        assert self.seq is not None
        start = self.seq.length
        tokens = self._tokens[start : start + n]
        return tokens if self.draft is None else np.concatenate([tokens, self.draft.tokens])

    @property
    def uncomputed(self) -> int:
        """Known tokens without KV: 1 while decoding, more while the prompt is computed."""
        return self.known - (self.seq.length if self.seq is not None else 0)

    @property
    def prefilling(self) -> bool:
        return self.uncomputed > 1
