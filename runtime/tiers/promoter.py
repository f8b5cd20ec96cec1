"""Brings blocks back to the device for runs that wait, where that is cheaper than computing them.

From when a run is queued on; it is admitted once its blocks have arrived, and takes no place beside others before. What
has arrived is committed at once, so that others may hit it, and kept until the run is admitted, unless somebody else
needs the room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from radix import OutOfBlocks, PrefixStore, Promotion, Sequence
from radix.cold import ColdIndex, Entry, Hit
from radix.cold.choice import cheapest
from radix.tokens import Ints
from runtime.request import GenerateJob, Run
from runtime.tiers.copier import Copier
from runtime.tiers.host_slots import HostSlots
from runtime.tiers.job import Job, Urgency
from runtime.tiers.load import Load
from runtime.tiers.pace import CopyPace, PrefillCost
from runtime.tiers.storage import BlockCopy, Storage

log = logging.getLogger(__name__)
# Blocks that arrive together: few enough that others can use them soon, enough that a copy is worth its overhead.
_CHUNK = 16
# Of the pool, so much may be held for runs whose turn has not come.
_AHEAD = 1 / 8


class Fetch(Enum):
    """What a run that waits finds of its prefix in tiers: nothing (more) that is worth it; blocks that are on their
    way; or blocks for which room is made first.
    """

    NOTHING = 0
    UNDER_WAY = 1
    NO_ROOM = 2


@dataclass
class PromotionCounters:
    """Since the start.

    Attributes:
        tokens: fetched and used, by tier.
        declined: tokens that were there and cheaper to compute.
        failures: blocks that could not be read, by tier.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    declined: int = 0
    failures: dict[int, int] = field(default_factory=dict)


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
        # Those that hold a sequence, and entries that are being read.
        self._loads: dict[Load, None] = {}
        self._reading: set[Entry] = set()
        # Runs that wait and for which tiers had nothing: they are looked at again when their turn comes.
        self._nothing_for: set[Run] = set()
        self._memory = frozenset(t for t, behind in enumerate(storage.tiers) if isinstance(behind, HostSlots))

    def find(self, tokens: Ints, job: GenerateJob, have: int) -> tuple[list[Hit], Promotion | None]:
        """Return the blocks that are worth fetching past the `have` first tokens, and the record of the decision."""
        hits = self._lookup(tokens, job, have)
        n, record = self._worth(hits, have)
        return hits[:n], record

    def _lookup(self, tokens: Ints, job: GenerateJob, have: int) -> list[Hit]:
        hits = self._index.lookup(tokens, job.namespace, have)
        if job.public_tokens and job.namespace.salt is not None:
            shared = self._index.lookup(tokens[: job.public_tokens], replace(job.namespace, salt=None), have)
            hits = max(hits, shared, key=self._reach)
        return hits

    def _worth(self, hits: list[Hit], have: int) -> tuple[int, Promotion | None]:
        if not hits:
            return 0, None
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
            kv_dtype=self._storage.kv_dtype,
        )
        return n, record

    def _reach(self, hits: list[Hit]) -> int:
        return hits[-1].index * self._index.block_size + hits[-1].tokens if hits else 0

    def fetch(self, run: Run, *, ahead: bool) -> Fetch:
        """Begin, or go on, to fetch what is worth it for a run that waits.

        ahead: others come first; it may hold only so much of the pool.
        """
        if run.load is not None:
            return Fetch.NOTHING if run.load.ended else Fetch.UNDER_WAY
        request, tokens = run.request, run.tokens[:-1]
        job = request.job
        if job.bypass_cache or self._index.entries == 0 or (ahead and run in self._nothing_for):
            return Fetch.NOTHING
        have = self._store.match(tokens, job.namespace, job.public_tokens)
        hits = self._lookup(tokens, job, have)
        # What a run is about to use must not be what makes way for it. The deepest goes first, as always.
        for hit in reversed(hits):
            self._index.touch(hit.entry)
        n, record = self._worth(hits, have)
        if n == 0:
            if record is not None and request.promotion is None:
                self.counters.declined += record.host_tokens + record.disk_tokens
            self._note(run, record)
            self._nothing_for.add(run)
            return Fetch.NOTHING
        if any(hit.entry in self._reading for hit in hits[:n]):
            # Somebody else's, who is going to share them.
            return Fetch.UNDER_WAY
        if ahead and self._held + n > self._store.num_blocks * _AHEAD:
            return Fetch.NOTHING
        return self._begin(run, self._reach(hits[:n]))

    @property
    def _held(self) -> int:
        return sum(len(load.seq.table) for load in self._loads if load.seq is not None)

    @staticmethod
    def _note(run: Run, record: Promotion | None) -> None:
        if run.request.admitted is None and record is not None:
            run.request.promotion = record

    def _begin(self, run: Run, end: int) -> Fetch:
        """Take room for the tokens up to `end`, and ask for what is there of them then."""
        job, store = run.request.job, self._store
        seq = store.open(
            run.tokens, job.namespace, public_tokens=job.public_tokens, priority=job.priority, in_advance=True
        )
        try:
            store.reserve(seq, end - seq.length)
        except OutOfBlocks as error:
            store.close(seq)
            return Fetch.NO_ROOM if error.leaving else Fetch.NOTHING
        # What made way took the place of some of them, perhaps.
        hits, record = self.find(run.tokens[:end], job, seq.length)
        self._note(run, record)
        if not hits:
            store.close(seq)
            return Fetch.NOTHING
        load = run.load = Load(run, seq, hits, [hit.entry.fastest for hit in hits], [None] * len(hits), self._memory)
        self._loads[load] = None
        self._ask(load, seq)
        return Fetch.UNDER_WAY

    def _ask(self, load: Load, seq: Sequence) -> None:
        demoter, ready, hits = self._store.demoter, self._storage.ready(), load.hits
        assert demoter is not None
        start = 0
        while start < len(hits):
            tier = load.tiers[start]
            end = min(start + _CHUNK, len(hits))
            chunk = hits[start : next((i for i in range(start, end) if load.tiers[i] != tier), end)]
            copies = [BlockCopy(hit.entry, int(seq.table[hit.index]), hit.entry.slots[tier]) for hit in chunk]
            for hit in chunk:
                self._index.begin_load(hit.entry)
                self._reading.add(hit.entry)
            demoter.lend(np.array([copy.block for copy in copies], dtype=np.int32))
            load.outstanding += 1
            self._copier.submit(self._job(load, start, copies, tier, ready), self._storage.lanes[tier])
            start += len(chunk)

    def _job(self, load: Load, start: int, copies: list[BlockCopy], tier: int, ready: object) -> Job:
        def work(job: Job) -> tuple[list[bool], Exception | None]:
            if load.stopped:
                return [], None
            return self._storage.copy_in(job, copies, tier, ready)  # type: ignore[arg-type]

        def landed(job: Job) -> None:
            good, fault = job.outcome if job.outcome is not None else ([False] * len(copies), None)
            self._landed(load, start, copies, tier, good, fault)
            self.pace.record(tier, job.seconds, sum(good))

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
            self._reading.discard(copy.entry)
            demoter.give_back(copy.block)
        if failed is not None:
            # What comes after it was not looked at.
            entry = load.hits[start + failed].entry
            if not entry.dead or fault is not None:
                self.counters.failures[tier] = self.counters.failures.get(tier, 0) + 1
            load.unsettled.remove(start + failed)
            self._index.loaded(entry, tier, ok=False, whole=False)
        load.stopped |= len(good) < len(copies) or failed is not None
        self._commit(load)
        self._settle(load)

    def _commit(self, load: Load) -> None:
        """Commit what has arrived without a hole, unless the sequence was let go."""
        run, seq = load.run, load.seq
        size = self._index.block_size
        while seq is not None and load.committed < len(load.hits) and load.state[load.committed]:
            hit, tier = load.hits[load.committed], load.tiers[load.committed]
            before, end = seq.length, hit.index * size + hit.tokens
            self._store.commit(seq, run.tokens[before:end])
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

    def admitted(self, run: Run) -> None:
        """A run that waited has opened its own sequence on what was fetched for it."""
        load = run.load
        if load is not None and run.request.admitted is None and run.seq is not None:
            run.request.host_tokens, run.request.disk_tokens = load.tokens_by_kind(run.seq.matched)
        self.abandon(run)

    def abandon(self, run: Run) -> None:
        """A run does not wait any more; blocks stay on loan until their copies have ended."""
        self._nothing_for.discard(run)
        if run.load is not None:
            self._let_go(run.load)
            run.load = None

    def release(self) -> bool:
        """Somebody needs room: hold nothing for runs that wait. False where nothing was held.

        What has arrived is evicted as anything else.
        """
        held = list(self._loads)
        for load in held:
            self._let_go(load)
        return bool(held)

    def _let_go(self, load: Load) -> None:
        load.stopped = True
        if load.seq is not None:
            del self._loads[load]
            self._store.close(load.seq)
            load.seq = None
