"""Brings blocks back to the device for a run that was admitted, where that is cheaper than computing them.

The run holds its whole sequence while its blocks arrive, and is not computed before they have; other runs are. What has
arrived is committed at once, so that others may hit it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from radix import Copy, PrefixStore, Promotion
from radix.cold import ColdIndex, Hit
from radix.cold.choice import cheapest
from radix.tokens import Ints
from runtime.request import GenerateJob, Run
from runtime.tiers.copier import Copier
from runtime.tiers.host_slots import HostSlots
from runtime.tiers.job import Job, Urgency
from runtime.tiers.pace import CopyPace, PrefillCost
from runtime.tiers.storage import BlockCopy, Storage

log = logging.getLogger(__name__)
# Blocks that arrive together: few enough that others can use them soon, enough that a copy is worth its overhead.
_CHUNK = 16


@dataclass(eq=False)
class Load:
    """Blocks on their way to one run.

    Attributes:
        hits: in order; `tiers` tells where each is read from, `state` whether it arrived well, None while it has not.
        unsettled: which arrived, and the index was not told yet what became of them.
        copies: of a partly filled block, as long as what is fetched has not made them superfluous.
        tokens_from: committed tokens by tier; those of `memory` are no files.
    """

    run: Run
    hits: list[Hit]
    copies: list[Copy]
    tiers: list[int]
    state: list[bool | None]
    memory: frozenset[int]
    unsettled: list[int] = field(default_factory=list)
    committed: int = 0
    outstanding: int = 0
    stopped: bool = False
    tokens_from: dict[int, int] = field(default_factory=dict)

    def tokens_by_kind(self) -> tuple[int, int]:
        """Return how many committed tokens came from memory and from disk."""
        from_memory = sum(n for tier, n in self.tokens_from.items() if tier in self.memory)
        return from_memory, sum(self.tokens_from.values()) - from_memory

    @property
    def ended(self) -> bool:
        """Whether no copy writes to the run's blocks any more."""
        return self.outstanding == 0


@dataclass
class PromotionCounters:
    """Since the start.

    Attributes:
        tokens: fetched and used, by tier.
        declined: tokens that were there and cheaper to compute.
        failures: blocks that could not be read, by tier.
        seconds: that copies took, by tier.
        blocks: read, by tier.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    declined: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)


class Promoter:
    """Decides about promotions and follows them."""

    def __init__(
        self,
        store: PrefixStore,
        index: ColdIndex,
        storage: Storage,
        copier: Copier,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._index = index
        self._storage = storage
        self._copier = copier
        self.pace = CopyPace(len(index.tiers), clock)
        self.prefill = PrefillCost()
        self.counters = PromotionCounters()
        self._memory = frozenset(t for t, behind in enumerate(storage.tiers) if isinstance(behind, HostSlots))

    def find(self, tokens: Ints, job: GenerateJob, have: int) -> tuple[list[Hit], Promotion | None]:
        """Return the blocks that are worth fetching past the `have` first tokens, and the record of the decision."""
        hits = self._index.lookup(tokens, job.namespace, have)
        if job.public_tokens and job.namespace.salt is not None:
            shared = self._index.lookup(tokens[: job.public_tokens], replace(job.namespace, salt=None), have)
            hits = max(hits, shared, key=self._reach)
        if not hits:
            return hits, None
        size = self._index.block_size
        blocks = [(hit.entry.fastest, min(hit.tokens, hit.index * size + hit.tokens - have)) for hit in hits]
        paces = [self.pace.seconds_a_block(tier) for tier in range(len(self._index.tiers))]
        pace = self.prefill.seconds_a_token
        n, fetch_s, compute_s = cheapest(blocks, paces, pace)
        in_host = sum(tokens for tier, tokens in blocks if tier in self._memory)
        record = Promotion(
            host_tokens=in_host,
            disk_tokens=sum(tokens for _, tokens in blocks) - in_host,
            fetch_s=None if all(paces[tier] is None for tier, _ in blocks) else fetch_s,
            compute_s=None if pace is None else compute_s,
            fetched=n > 0,
        )
        return hits[:n], record

    def _reach(self, hits: list[Hit]) -> int:
        return hits[-1].index * self._index.block_size + hits[-1].tokens if hits else 0

    def begin(self, run: Run, copies: list[Copy]) -> bool:
        """Fetch what is worth it for a run that holds its sequence; False where it can be computed at once."""
        seq = run.seq
        assert seq is not None
        request = run.request
        if request.job.bypass_cache or self._index.entries == 0:
            return False
        hits, record = self.find(run.tokens[:-1], request.job, seq.length)
        if request.admitted is None:
            request.promotion = record
        if not hits:
            if record is not None:
                self.counters.declined += record.host_tokens + record.disk_tokens
            return False
        load = run.load = Load(run, hits, copies, [hit.entry.fastest for hit in hits], [None] * len(hits), self._memory)
        demoter, ready = self._store.demoter, self._storage.ready()
        assert demoter is not None
        start = 0
        while start < len(hits):
            tier = load.tiers[start]
            end = min(start + _CHUNK, len(hits))
            chunk = hits[start : next((i for i in range(start, end) if load.tiers[i] != tier), end)]
            copies_in = [BlockCopy(hit.entry, int(seq.table[hit.index]), hit.entry.slots[tier]) for hit in chunk]
            for hit in chunk:
                self._index.begin_load(hit.entry)
            demoter.lend(np.array([copy.block for copy in copies_in], dtype=np.int32))
            load.outstanding += 1
            self._copier.submit(self._job(load, start, copies_in, tier, ready), self._storage.lanes[tier])
            start += len(chunk)
        return True

    def _job(self, load: Load, start: int, copies: list[BlockCopy], tier: int, ready: object) -> Job:
        def work(job: Job) -> tuple[list[bool], Exception | None]:
            if load.stopped:
                return [], None
            return self._storage.copy_in(job, copies, tier, ready)  # type: ignore[arg-type]

        def landed(job: Job) -> None:
            good, fault = job.outcome if job.outcome is not None else ([False] * len(copies), None)
            self._landed(load, start, copies, tier, good, fault)
            self.pace.record(tier, job.seconds, len(good))
            self.counters.seconds[tier] = self.counters.seconds.get(tier, 0.0) + job.seconds
            self.counters.blocks[tier] = self.counters.blocks.get(tier, 0) + len(good)

        return Job(work, landed, Urgency.LOAD, len(copies), tier)

    def _landed(
        self, load: Load, start: int, copies: list[BlockCopy], tier: int, good: list[bool], fault: Exception | None
    ) -> None:
        demoter = self._store.demoter
        assert demoter is not None
        load.outstanding -= 1
        if fault is not None:
            log.warning("a block in the %s tier cannot be used: %s", self._index.tiers[tier].name, fault)
        failed = next((i for i, ok in enumerate(good) if not ok), None)
        for i, copy in enumerate(copies, start=start):
            load.state[i] = i - start < len(good) and good[i - start]
            load.unsettled.append(i)
            demoter.give_back(copy.block)
        if failed is not None:
            # What comes after it was not looked at.
            self.counters.failures[tier] = self.counters.failures.get(tier, 0) + 1
            load.unsettled.remove(start + failed)
            self._index.loaded(load.hits[start + failed].entry, tier, ok=False, whole=False)
        load.stopped |= len(good) < len(copies) or failed is not None
        self._commit(load)
        self._settle(load)

    def _commit(self, load: Load) -> None:
        """Commit what has arrived without a hole, unless the run has left."""
        run, seq = load.run, load.run.seq
        size = self._index.block_size
        while load.committed < len(load.hits) and load.state[load.committed] and run.load is load and seq is not None:
            hit, tier = load.hits[load.committed], load.tiers[load.committed]
            before, end = seq.length, hit.index * size + hit.tokens
            self._store.commit(seq, run.tokens[before:end])
            # The first block holds what was to be copied, too.
            load.copies = []
            load.committed += 1
            load.tokens_from[tier] = load.tokens_from.get(tier, 0) + end - before
            self.counters.tokens[tier] = self.counters.tokens.get(tier, 0) + end - before

    def _settle(self, load: Load) -> None:
        """Let what was committed leave its tier, and in the end let go of the rest."""
        left = []
        for i in load.unsettled:
            if i < load.committed or load.ended:
                hit = load.hits[i]
                whole = i < load.committed and hit.tokens * 4 == len(hit.entry.tokens)
                self._index.loaded(hit.entry, load.tiers[i], ok=True, whole=whole)
            else:
                left.append(i)
        load.unsettled = left

    def abandon(self, run: Run) -> None:
        """A run leaves the pool; its blocks stay on loan until their copies have ended."""
        if run.load is not None:
            run.load.stopped = True
            run.load = None
