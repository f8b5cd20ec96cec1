"""Forgets in files what was flushed, so that the next start does not find it again."""

from __future__ import annotations

import logging
from concurrent.futures import Future

from radix.cold import ColdIndex
from runtime.errors import NotErased
from runtime.tiers.copier import Copier
from runtime.tiers.job import Job, Urgency
from runtime.tiers.slot_file import SlotFile
from runtime.tiers.storage import Storage

log = logging.getLogger(__name__)


class Eraser:
    """On the engine's thread; the files' own threads do the work, before anything that is asked of them later.

    What they were asked to write before is dead by then, and is not written any more.
    """

    def __init__(self, index: ColdIndex, storage: Storage, copier: Copier) -> None:
        self._index = index
        self._storage = storage
        self._copier = copier
        self._outstanding = 0
        self._failed: set[int] = set()
        self._waiting: list[Future[None]] = []

    def turn(self) -> None:
        """Ask for what was flushed to be erased. Before anything new is written."""
        for scope in self._index.take_flushed():
            for tier, file in self._storage.files.items():
                self._outstanding += 1
                self._copier.submit(self._job(file, tier, scope), self._storage.lanes[tier])

    def finished(self) -> Future[None]:
        """Done once everything that was flushed so far is erased; raises NotErased where it cannot be."""
        self.turn()
        future: Future[None] = Future()
        self._waiting.append(future)
        self._tell()
        return future

    def _job(self, file: SlotFile, tier: int, scope: bytes | None) -> Job:
        def work(job: Job) -> bool:
            try:
                file.forget(scope)
            except OSError as error:
                log.error("what was flushed cannot be erased from %s: %s", file.path, error)
                return False
            return True

        def landed(job: Job) -> None:
            self._outstanding -= 1
            if not job.outcome:
                self._failed.add(tier)
            self._tell()

        return Job(work, landed, Urgency.ERASE, 1, tier)

    def _tell(self) -> None:
        if self._outstanding:
            return
        error = NotErased(" and ".join(self._index.tiers[t].name for t in sorted(self._failed)))
        for future in self._waiting:
            if not future.set_running_or_notify_cancel():
                # Whoever asked has left.
                continue
            if self._failed:
                future.set_exception(error)
            else:
                future.set_result(None)
        self._waiting.clear()
        self._failed.clear()
