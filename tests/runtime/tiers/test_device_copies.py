"""Copies of an accelerator's pool, with CUDA's streams and events replaced by a record of how they are used.

No GPU takes part: what is shown is the order of the calls, and that the bytes survive the way through a staging buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from radix.cold import Entry
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import LayerShape
from runtime.tiers.host_slots import HostSlots
from runtime.tiers.job import Job, Urgency
from runtime.tiers.storage import BlockCopy, Storage

BLOCKS, SIZE = 6, 4


class Recorded:
    """Stands in for `torch.cuda`'s streams and events."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = self.calls

        class Event:
            def record(self, stream: Any = None) -> None:
                calls.append(("record", stream))

        class Stream:
            def __init__(self, device: torch.device) -> None:
                calls.append(("stream", device))

            def wait_event(self, event: Event) -> None:
                calls.append(("wait", event))

            def synchronize(self) -> None:
                calls.append(("synchronize",))

        @contextmanager
        def stream(of: Stream) -> Iterator[None]:
            calls.append(("enter",))
            yield
            calls.append(("leave",))

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: ("current", device))


class Watched(KVPool):
    """A pool that notes what its bytes are written to and read from."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        shapes = [LayerShape(0, 2, 6, 6), LayerShape(1, 1, 8, 4)]
        super().__init__(shapes, BLOCKS, SIZE, dtype=torch.float16, device="cpu")
        self._calls = calls
        random = torch.Generator().manual_seed(2)
        for kv in self.layers.values():
            for tensor in kv.tensors:
                tensor.normal_(generator=random)

    def export_blocks(self, blocks: Any, out: torch.Tensor, *rest: Any) -> None:
        self._calls.append(("export", out.data_ptr()))
        super().export_blocks(blocks, out, *rest)

    def import_blocks(self, blocks: Any, data: torch.Tensor, *rest: Any) -> None:
        self._calls.append(("import",))
        super().import_blocks(blocks, data, *rest)


def test_copies_wait_for_the_engine_and_end_before_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    recorded.patch(monkeypatch)
    pool = Watched(recorded.calls)
    host = HostSlots(4, pool.block_bytes)
    storage = Storage(pool, [host])
    storage._accelerated = True
    # Pinned memory takes a GPU.
    monkeypatch.setattr(storage, "staging", lambda n: torch.empty((n, pool.block_bytes), dtype=torch.uint8))
    job = Job(lambda _: None, lambda _: None, Urgency.DEMOTE, 2, 0)
    wanted = torch.empty((2, pool.block_bytes), dtype=torch.uint8)
    pool.export_blocks([5, 1], wanted)
    recorded.calls.clear()

    ready = storage.ready()
    # On the pool's device, which need not be the current one.
    assert recorded.calls == [("record", ("current", pool.device))]
    recorded.calls.clear()
    rows = storage.export(job, [5, 1], ready)
    assert [call[0] for call in recorded.calls] == ["stream", "wait", "enter", "export", "leave", "synchronize"]
    assert recorded.calls[0] == ("stream", pool.device)
    assert recorded.calls[1] == ("wait", ready)
    # Not into the rows themselves, where every layer of every block would be a copy of its own.
    assert recorded.calls[3] != ("export", rows.data_ptr())
    assert torch.equal(rows, wanted)

    storage.keep(0, [3, 0], rows)
    recorded.calls.clear()
    copies = [BlockCopy(Entry(b"", b"", b"", 1), block, slot) for block, slot in ((2, 3), (4, 0))]
    assert storage.copy_in(job, copies, 0, ready) == ([True, True], None)
    # On the stream that this thread has by now.
    assert [call[0] for call in recorded.calls] == ["wait", "enter", "import", "leave", "synchronize"]
    found = torch.empty_like(wanted)
    pool.export_blocks(np.array([2, 4]), found)
    assert torch.equal(found, wanted)

    def failing(*_: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(pool, "import_blocks", failing)
    recorded.calls.clear()
    with pytest.raises(RuntimeError, match="no memory"):
        storage.copy_in(job, copies, 0, ready)
    assert recorded.calls[-1] == ("synchronize",)
