"""Who waits for what was flushed to be erased."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.errors import NotErased
from runtime.tiers.eraser import Eraser
from runtime.tiers.job import Job


class Disk:
    """A tier whose thread does its work when a test says so."""

    def __init__(self) -> None:
        self.flushed: list[bytes | None] = []
        self.jobs: list[Job] = []
        self.fault: OSError | None = None
        self.path = "a file"
        index = SimpleNamespace(take_flushed=self.take_flushed, tiers=[SimpleNamespace(name="disk")])
        storage = SimpleNamespace(files={0: self}, lanes=[1])
        copier = SimpleNamespace(submit=lambda job, lane: self.jobs.append(job))
        self.eraser = Eraser(index, storage, copier)  # type: ignore[arg-type]

    def take_flushed(self) -> list[bytes | None]:
        flushed, self.flushed = self.flushed, []
        return flushed

    def forget(self, scope: bytes | None) -> None:
        if self.fault is not None:
            raise self.fault

    def work(self) -> None:
        for job in self.jobs:
            job.run()
            job.landed(job)
        self.jobs.clear()


def test_one_who_leaves_keeps_nobody_from_being_told() -> None:
    disk = Disk()
    disk.flushed = [b"scope"]
    left, stayed = disk.eraser.finished(), disk.eraser.finished()
    assert left.cancel()
    assert not stayed.done()
    disk.work()
    assert stayed.result(0) is None
    assert disk.eraser.finished().result(0) is None


def test_all_who_wait_hear_of_a_failure_and_nobody_after_them() -> None:
    disk = Disk()
    disk.flushed, disk.fault = [None], OSError("no")
    waiting = [disk.eraser.finished() for _ in range(2)]
    disk.work()
    for future in waiting:
        with pytest.raises(NotErased, match="disk tier"):
            future.result(0)
    assert disk.eraser.finished().result(0) is None
