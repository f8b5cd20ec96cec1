"""The end of the tiers: copies come to theirs, what is hot is saved, files are let go. It takes bounded time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from radix import PrefixStore
from runtime.tiers.build import BuiltTiers
from runtime.tiers.copier import Copier
from runtime.tiers.job import Job, Urgency
from runtime.tiers.saver import save
from runtime.tiers.storage import Storage

log = logging.getLogger(__name__)
DRAIN_S = 10.0


class Closing:
    """On whatever thread, once the engine's has ended."""

    def __init__(self, built: BuiltTiers, store: PrefixStore, storage: Storage, copier: Copier) -> None:
        self._built = built
        self._store = store
        self._storage = storage
        self._copier = copier

    def run(self, pump: Callable[[], bool], *, persist: bool) -> None:
        """End everything.

        Args:
            pump: goes on with copies; False where none is left to do.
            persist: save what is hot.
        """
        deadline = time.monotonic() + DRAIN_S
        while pump() and time.monotonic() < deadline:
            time.sleep(0.002)
        index, files, lanes = self._built.index, self._storage.files, self._storage.lanes
        stuck = {tier for tier in files if index.tiers[tier].retired}
        for tier in files:
            if self._copier.busy_in(lanes[tier]) and tier not in stuck:
                log.warning("copies to the %s tier did not end within %g s", index.tiers[tier].name, DRAIN_S)
                self._copier.give_up(lanes[tier])
                stuck.add(tier)
        kept = self._built.persist
        if persist and kept is not None and kept not in stuck and not self._save(kept):
            stuck.add(kept)
        self._copier.close()
        for tier in files:
            # A file that is in use by its thread stays open: its number must not become another's.
            if tier not in stuck:
                self._storage.close(tier)

    def _save(self, tier: int) -> bool:
        limit = self._built.settings.persist_s
        work = lambda job: save(job, self._store, self._built.index, self._storage, tier, limit)  # noqa: E731
        self._copier.submit(Job(work, lambda job: None, Urgency.SAVE, 1, tier), self._storage.lanes[tier])
        saved = self._copier.drain(limit + DRAIN_S)
        if not saved:
            log.error("what was cached could not be saved: the file did not answer for %g s", limit + DRAIN_S)
        return saved
