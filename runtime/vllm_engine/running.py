"""The requests that VllmEngine serves now, by the ids that their callers gave them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.engine import Handle


@dataclass(eq=False)
class RunningRequest:
    """One call of Generate. Aborting may come before the engine knows of it."""

    aborted: bool = False
    _handle: Handle | None = None

    def submitted(self, handle: Handle) -> None:
        self._handle = handle
        if self.aborted:
            handle.cancel()

    def abort(self) -> None:
        """Stop it. Idempotent."""
        self.aborted = True
        if self._handle is not None:
            self._handle.cancel()


@dataclass
class RunningRequests:
    """On the event loop's thread only.

    A router that lost a stream may come back with the same id before the lost one has ended: an id means all of its
    calls.

    Attributes:
        last_received: when a call began last, in seconds since 1970; 0 where none did.
    """

    last_received: float = 0.0
    _by_id: dict[str, list[RunningRequest]] = field(default_factory=dict)

    @contextmanager
    def entered(self, request_id: str) -> Iterator[RunningRequest]:
        """A call that runs until the block is left."""
        self.last_received = time.time()
        mine = RunningRequest()
        self._by_id.setdefault(request_id, []).append(mine)
        try:
            yield mine
        finally:
            calls = self._by_id[request_id]
            calls.remove(mine)
            if not calls:
                del self._by_id[request_id]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Stop what runs under these ids; an id that nothing goes by is no fault."""
        for request_id in request_ids:
            for call in self._by_id.get(request_id, ()):
                call.abort()

    def __len__(self) -> int:
        return sum(len(calls) for calls in self._by_id.values())
