"""The tiers of one runtime, on the engine's thread: what goes down, what comes back, and what is kept for a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import torch

from radix import Cause, PrefixStore, Span, Verdict
from radix.block_events import Tier
from radix.cold import ColdIndex, Demotion, Move
from radix.cold.announcer import Announcer
from runtime.monitoring.step_clock import StepRecord
from runtime.request import GenerateJob, Run
from runtime.tiers.backup import Backup
from runtime.tiers.books import TierBooks, TiersBooks
from runtime.tiers.build import BuiltTiers
from runtime.tiers.closing import Closing
from runtime.tiers.copier import Copier
from runtime.tiers.eraser import Eraser
from runtime.tiers.job import Job, Urgency
from runtime.tiers.narrow import BlockStore
from runtime.tiers.promoter import Promoter
from runtime.tiers.storage import MEMORY, BlockCopy, Storage

log = logging.getLogger(__name__)
_CHUNK = 16
# Copies to disk that are on their way at a time: more would only wait, and take memory.
_SAVING_BLOCKS = 64
# Evicted blocks that wait for a disk at a time: what is evicted while so many do is forgotten.
LEAVING_BLOCKS = 256
# Of the pool and of host memory, so much is kept free ahead of demand.
_AHEAD = 1 / 16
# A disk that failed is tried again after a while; one that does not answer for this long is given up.
DISK_REST_S = 15.0
ANSWER_S = 10.0


class Tiers:
    """Demotes, promotes, backs up.

    Args:
        ahead: blocks of the device to keep free, so that a step seldom waits for room.
        wake: called from other threads when there is something to do in `turn`.
    """

    def __init__(
        self,
        built: BuiltTiers,
        pool: BlockStore,
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
        self._copier = Copier(["memory", *(self.index.tiers[t].name for t in self._storage.files)], wake)
        self._eraser = Eraser(self.index, self._storage, self._copier)
        self._ahead = min(ahead, int(pool.num_blocks * _AHEAD))
        self._room_came: Callable[[], None] = lambda: None
        disk = next((t for t in self._storage.files if self.index.tiers[t].writable), None)
        self._backup = None if disk is None else Backup(self.index, disk)
        self._disk_rests_until = 0.0

    def attach(self, store: PrefixStore, room_came: Callable[[], None]) -> None:
        """Work for this store, which was made with `index`."""
        self._store = store
        self._room_came = room_came
        self.promoter = Promoter(store, self.index, self._storage, self._copier, self._clock)

    def announcer(self) -> Announcer:
        """What tells of the tiers' blocks as KV events; of one at a time."""
        assert self._store.demoter is not None
        files = self._storage.files
        places: dict[int, Tier] = {t: "disk" if t in files else "host" for t in range(len(self.index.tiers))}
        return Announcer(self.index, places, self._store.demoter.namespaces)

    @property
    def waiting(self) -> bool:
        """Whether copies are under way."""
        return self._copier.busy

    @property
    def unfinished(self) -> bool:
        """Whether there is more to do, though no request asks for anything."""
        return self._copier.busy or bool(self._backup)

    # For the scheduler

    def left(self, run: Run) -> None:
        """A run is about to give back its sequence."""
        seq = run.seq
        if self._backup is not None and not self._disk_rests and seq is not None and seq.cursor.node is not None:
            assert self._store.demoter is not None
            places = [(seq.namespace, seq.length)]
            if seq.public_tokens:
                places.append((replace(seq.namespace, salt=None), min(seq.length, seq.public_tokens)))
            for namespace, end in places:
                self._backup.add(run.tokens[:end], namespace)
                self._store.demoter.namespaces[namespace] = None

    def amend(self, verdict: Verdict, job: GenerateJob) -> Verdict:
        """Call cached what would be fetched."""
        have = verdict.tokens_by_cause().get(Cause.CACHED, 0)
        hits, promotion = self.promoter.find(job.tokens[:-1], job, have)
        if not hits:
            return replace(verdict, promotion=promotion)
        end = hits[-1].index * self.index.block_size + hits[-1].tokens
        rest = [replace(span, start=max(span.start, end)) for span in verdict.spans if span.end > end]
        return Verdict(verdict.prompt_tokens, (Span(0, end, Cause.CACHED), *rest), promotion)

    # Between two steps

    def turn(self, store: PrefixStore) -> None:
        """Take in what has been copied, and ask for what is to be. Must not block."""
        for lane in self._copier.overdue(ANSWER_S):
            self._give_up(self._storage.lanes.index(lane))
        if self._copier.reap():
            self._room_came()
            # Its wake-up may have been read before: whoever waits for a copy is looked at again.
            self._wake()
        self._eraser.turn()
        self._demote()
        if self.index.first < 0:
            return
        short = self._ahead - store.free_blocks - store.leaving_blocks
        if short > 0:
            store.evict(short)
            self._demote()
        self._move_down()
        self._back_up()

    def stepped(self, record: StepRecord) -> None:
        """A step of the model: what computing costs."""
        self.promoter.prefill.record(record.total_s, record.sequences, record.tokens)

    def erased(self) -> Future[None]:
        """See `Eraser.finished`. After `PrefixStore.flush`."""
        return self._eraser.finished()

    def _demote(self) -> None:
        """Send off what eviction took from the tree."""
        assert self._store.demoter is not None
        demotions = self._store.demoter.take()
        if demotions and demotions[0].tier in self._storage.files:
            # A disk that is slower than eviction must not take ever more memory.
            excess = max(0, len(demotions) - max(0, LEAVING_BLOCKS - self._copier.pending[Urgency.DEMOTE]))
            self._forget(demotions[:excess])
            demotions = demotions[excess:]
        for start in range(0, len(demotions), _CHUNK):
            self._copy_out(demotions[start : start + _CHUNK], Urgency.DEMOTE)

    def _copy_out(self, demotions: list[Demotion], urgency: Urgency) -> None:
        """Copy blocks to a tier; to a file by way of memory, so that none is on loan for as long as a disk takes."""
        tier = demotions[0].tier
        to_file = tier in self._storage.files
        if to_file and self._disk_rests:
            self._forget(demotions)
            return
        blocks, ready = [d.block for d in demotions], self._storage.ready()
        slots = [d.entry.slots[tier] for d in demotions]

        def read(job: Job) -> torch.Tensor:
            rows = self._storage.export(job, blocks, ready)
            if not to_file:
                self._storage.keep(tier, slots, rows)
            return rows

        def landed(job: Job) -> None:
            assert self._store.demoter is not None
            for block in blocks:
                self._store.demoter.give_back(block)
            if to_file and job.outcome is not None:
                self._write_out(demotions, job.outcome, urgency)
            else:
                self._told(demotions, [job.outcome is not None] * len(demotions))

        self._copier.submit(Job(read, landed, urgency, len(blocks), tier), MEMORY)

    def _write_out(self, demotions: list[Demotion], rows: torch.Tensor, urgency: Urgency) -> None:
        tier = demotions[0].tier
        copies = [BlockCopy(d.entry, d.block, d.entry.slots[tier]) for d in demotions]

        def landed(job: Job) -> None:
            good, fault = job.outcome if job.outcome is not None else ([False] * len(copies), None)
            self._note(fault, tier)
            self._told(demotions, good)

        work = lambda job: self._storage.write(tier, copies, rows)  # noqa: E731
        self._copier.submit(Job(work, landed, urgency, len(copies), tier), self._storage.lanes[tier])

    def _told(self, demotions: list[Demotion], good: list[bool]) -> None:
        """These are in their tier now, or are not."""
        tier = demotions[0].tier
        bad = sum(not ok and not d.entry.dead for d, ok in zip(demotions, good, strict=True))
        self.counters.wrote(tier, sum(good), bad)
        for d, ok in zip(demotions, good, strict=True):
            self.index.landed(d.entry, tier, ok=ok, spare=d.spare, first=d.first)

    def _forget(self, demotions: list[Demotion]) -> None:
        """Copy nothing: the blocks are free at once, and whoever waited for room is looked at again."""
        assert self._store.demoter is not None
        for demotion in demotions:
            self._store.demoter.done(demotion, ok=False)
            self.index.tiers[demotion.tier].lost += not demotion.spare
        if demotions:
            self._room_came()
            self._wake()

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
            ok, fault = job.outcome if job.outcome is not None else (False, None)
            self._note(fault, target)
            self.counters.wrote(target, int(ok), int(not ok and not entry.dead))
            self.index.moved(move, ok=ok)

        work = lambda job: self._storage.copy_down(entry, source, slots[0], target, slots[1])  # noqa: E731
        self._copier.submit(Job(work, landed, urgency, 1, target), self._storage.lanes[target])

    def _back_up(self) -> None:
        """Write some of what runs left in the tree to disk too, where there is room."""
        if not self._backup or self._disk_rests:
            return
        copies = self._backup.take(self._store, _SAVING_BLOCKS - self._copier.pending[Urgency.SAVE])
        for start in range(0, len(copies), _CHUNK):
            self._copy_out(copies[start : start + _CHUNK], Urgency.SAVE)
        if self._backup and not self._copier.busy:
            # It looked at many that were there; no copy's end is going to bring the next turn.
            self._wake()

    # A disk that fails

    def _note(self, fault: Exception | None, tier: int) -> None:
        if fault is None:
            return
        if not self._disk_rests:
            log.warning("the %s tier cannot be written, and rests for a while: %s", self.index.tiers[tier].name, fault)
        self._disk_rests_until = self._clock() + DISK_REST_S
        if self._backup is not None:
            # It would be the first to fail again, and has other ways down.
            self._backup.clear()

    @property
    def _disk_rests(self) -> bool:
        return self._clock() < self._disk_rests_until

    def _give_up(self, tier: int) -> None:
        """Use a tier no more that does not answer. What it was asked for is a miss."""
        at = self.index.tiers[tier]
        if not at.retired:
            log.error("the %s tier did not answer for %g s, and is not used until the next start", at.name, ANSWER_S)
            self.index.retire(tier)
            if at.writable:
                self._backup = None
        self._copier.give_up(self._storage.lanes[tier])
        self._room_came()
        self._wake()

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
                    tier.retired,
                )
                for t, tier in enumerate(self.index.tiers)
            ),
            fetched.declined,
        )

    # The end

    def close(self, *, persist: bool) -> None:
        """Save what is worth it, and let go of files and threads. The engine's thread has ended.

        Takes what copies still need, for a while, and what saving may take; a file that does not answer is left alone.
        """
        Closing(self._built, self._store, self._storage, self._copier).run(self._pump, persist=persist)

    def _pump(self) -> bool:
        """A turn when nobody asks for room any more; False where nothing is left to do."""
        self._copier.reap()
        self._eraser.turn()
        self._demote()
        self._move_down()
        self._back_up()
        return self._copier.busy or bool(self._backup and not self._disk_rests)
