"""The tiers of one runtime, on the engine's thread: what goes down, what comes back, and what is kept for a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from radix import Cause, Copy, PrefixStore, Span, Verdict
from radix.cold import ColdIndex, Demotion, Move, scope_of
from radix.cold.digests import TOKEN_BYTES, PathHash, token_bytes
from runtime.kv_pool import KVPool
from runtime.request import GenerateJob, Run
from runtime.step_clock import StepRecord
from runtime.tiers.books import TierBooks, TiersBooks
from runtime.tiers.build import BuiltTiers
from runtime.tiers.copier import Copier, Job, Urgency
from runtime.tiers.host_slots import HostSlots
from runtime.tiers.promoter import Promoter
from runtime.tiers.saver import save
from runtime.tiers.slot_file import SlotFile
from runtime.tiers.storage import BlockCopy, Storage

log = logging.getLogger(__name__)
_CHUNK = 16
# Copies to disk that are on their way at a time: more would only wait, and hold what they copy.
_SAVING_BLOCKS = 64
# Of the pool and of host memory, so much is kept free ahead of demand.
_AHEAD = 1 / 16
# A disk that failed is tried again after a while.
_DISK_REST_S = 15.0
_DRAIN_S = 10.0


class Tiers:
    """Demotes, promotes, saves.

    Args:
        ahead: blocks of the device to keep free, so that a step seldom waits for room.
        wake: called from other threads when there is something to do in `turn`.
    """

    def __init__(
        self,
        built: BuiltTiers,
        pool: KVPool,
        *,
        ahead: int,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index: ColdIndex = built.index
        self.counters = built.counters
        self._built = built
        self._clock = clock
        self._storage = Storage(pool, built.behind)
        self._wake = wake
        self._copier = Copier(wake)
        self._ahead = min(ahead, int(pool.num_blocks * _AHEAD))
        self._room_came: Callable[[], None] = lambda: None
        self._disk = next(
            (t for t, tier in enumerate(self.index.tiers) if tier.writable and isinstance(built.behind[t], SlotFile)),
            -1,
        )
        self._disk_rests_until = 0.0

    def attach(self, store: PrefixStore, room_came: Callable[[], None]) -> None:
        """Work for this store, which was made with `index`."""
        self._store = store
        self._room_came = room_came
        self.promoter = Promoter(store, self.index, self._storage, self._copier, self._clock)

    @property
    def waiting(self) -> bool:
        """Whether copies are under way."""
        return self._copier.busy

    # For the scheduler

    def begin(self, run: Run, copies: list[Copy]) -> bool:
        """See `Promoter.begin`."""
        return self.promoter.begin(run, copies)

    def left(self, run: Run) -> None:
        """A run is about to give back its sequence."""
        self.promoter.abandon(run)
        self._back_up(run)

    def amend(self, verdict: Verdict, job: GenerateJob) -> Verdict:
        """Call cached what would be fetched."""
        have = verdict.tokens_by_cause().get(Cause.CACHED, 0)
        hits, _ = self.promoter.find(job.tokens[:-1], job, have)
        if not hits:
            return verdict
        end = hits[-1].index * self.index.block_size + hits[-1].tokens
        rest = [replace(span, start=max(span.start, end)) for span in verdict.spans if span.end > end]
        return Verdict(verdict.prompt_tokens, (Span(0, end, Cause.CACHED), *rest))

    # Between two steps

    def turn(self, store: PrefixStore) -> None:
        """Take in what has been copied, and ask for what is to be. Must not block."""
        if self._copier.reap():
            self._room_came()
            # Its wake-up may have been read before: whoever waits for a copy is looked at again.
            self._wake()
        self._demote()
        if self.index.first < 0:
            return
        short = self._ahead - store.free_blocks - store.leaving_blocks
        if short > 0:
            store.evict(short)
            self._demote()
        self._move_down()

    def stepped(self, record: StepRecord) -> None:
        """A step of the model: what computing costs."""
        self.promoter.prefill.record(record.total_s, record.sequences, record.tokens)

    def _demote(self) -> None:
        """Send off what eviction took from the tree."""
        assert self._store.demoter is not None
        demotions = self._store.demoter.take()
        for start in range(0, len(demotions), _CHUNK):
            self._copy_out(demotions[start : start + _CHUNK], Urgency.DEMOTE)

    def _copy_out(self, demotions: list[Demotion], urgency: Urgency) -> None:
        tier = demotions[0].tier
        disk = not isinstance(self._storage.tiers[tier], HostSlots)
        copies = [BlockCopy(d.entry, d.block, d.entry.slots[tier]) for d in demotions]
        if disk and self._disk_rests:
            for demotion in demotions:
                self._done(demotion, ok=False)
            return
        ready = self._storage.ready()

        def landed(job: Job) -> None:
            good, fault = job.outcome if job.outcome is not None else ([False] * len(demotions), None)
            self._note(fault, tier)
            for demotion, ok in zip(demotions, good, strict=True):
                self._done(demotion, ok=ok)
            self.counters.wrote(tier, sum(good), len(good) - sum(good))

        work = lambda: self._storage.copy_out(copies, tier, ready)  # noqa: E731
        self._copier.submit(Job(work, landed, urgency, len(copies), tier), disk=disk)

    def _done(self, demotion: Demotion, *, ok: bool) -> None:
        assert self._store.demoter is not None
        self._store.demoter.done(demotion, ok=ok)

    def _move_down(self) -> None:
        index = self.index
        if index.second < 0 or self._disk_rests:
            return
        host = index.tiers[index.first]
        for move in index.spill(max(1, int(host.capacity * _AHEAD))):
            self._copy_down(move, Urgency.SPILL)
        room = _SAVING_BLOCKS - self._copier.pending[Urgency.SAVE]
        if room > 0:
            for move in index.save(room):
                self._copy_down(move, Urgency.SAVE)

    def _copy_down(self, move: Move, urgency: Urgency) -> None:
        entry, source, target = move.entry, move.source, move.target
        slots = entry.slots[source], entry.slots[target]

        def landed(job: Job) -> None:
            self._note(job.outcome, target)
            ok = job.outcome is None
            self.index.moved(move, ok=ok)
            self.counters.wrote(target, int(ok), int(not ok))

        work = lambda: self._storage.copy_down(entry, source, slots[0], target, slots[1])  # noqa: E731
        self._copier.submit(Job(work, landed, urgency, 1, target), disk=True)

    def _note(self, fault: Exception | None, tier: int) -> None:
        if fault is None:
            return
        if not self._disk_rests:
            log.warning("the %s tier cannot be written, and rests for a while: %s", self.index.tiers[tier].name, fault)
        self._disk_rests_until = self._clock() + _DISK_REST_S

    @property
    def _disk_rests(self) -> bool:
        return self._clock() < self._disk_rests_until

    def _back_up(self, run: Run) -> None:
        """Write what a run leaves in the tree to disk too, where there is room: a crash forgets the device."""
        seq = run.seq
        if self._disk < 0 or seq is None or seq.cursor.node is None or self._disk_rests:
            return
        size = self.index.block_size
        scope = scope_of(seq.namespace)
        raw = token_bytes(run.tokens[: seq.length // size * size])
        path = PathHash(scope)
        parent = path.add(b"")
        step = size * TOKEN_BYTES
        found: list[Demotion] = []
        # What is on loan for it cannot come free before the disk is done.
        room = max(_CHUNK, self._storage.pool.num_blocks // 4) - self._copier.pending[Urgency.SAVE]
        for i, block in enumerate(seq.table[: seq.length // size].tolist()):
            tokens = raw[i * step : (i + 1) * step]
            if not self.index.holds(parent, tokens, self._disk):
                if len(found) >= room:
                    break
                entry = self.index.store(parent, scope, tokens, tier=self._disk, spare=True)
                if entry is None:
                    break
                found.append(Demotion(entry, block, self._disk, spare=True))
            parent = path.add(tokens)
        if found:
            self._store.lend(np.array([demotion.block for demotion in found], dtype=np.int32))
            for start in range(0, len(found), _CHUNK):
                self._copy_out(found[start : start + _CHUNK], Urgency.SAVE)

    # For those who watch, from any thread

    def books(self) -> TiersBooks:
        """What each tier holds and did."""
        fetched, wrote = self.promoter.counters, self.counters
        return TiersBooks(
            tuple(
                TierBooks(
                    tier.name,
                    tier.capacity,
                    tier.used,
                    self._built.block_bytes,
                    fetched.tokens.get(t, 0),
                    wrote.written.get(t, 0),
                    wrote.failed.get(t, 0) + fetched.failures.get(t, 0),
                    tier.lost,
                )
                for t, tier in enumerate(self.index.tiers)
            ),
            fetched.declined,
        )

    # The end

    def close(self, *, persist: bool) -> None:
        """Save what is worth it, and let go of files and threads. The engine's thread has ended."""
        drained = self._copier.drain(_DRAIN_S)
        if not drained:
            log.warning("copies between tiers did not end within %g s", _DRAIN_S)
        elif persist and self._built.persist is not None:
            save(self._store, self.index, self._storage, self._built.persist, self._built.settings.persist_s)
        self._copier.close()
        if drained:
            self._storage.close()
