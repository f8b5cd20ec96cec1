"""Looking at a runtime again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..client import RadixClient
from ..errors import RadixloopError, Unimplemented
from ..keeping import Leases
from ..results import CacheNode, CacheStats, ModelInfo

# A list of all nodes is made between two steps of the engine: that of a larger tree would hold it up.
NODES_AT_MOST = 2000
HEAD_TOKENS = 24


@dataclass(frozen=True)
class Look:
    """One answer of the runtime, and when it came (monotonic seconds).

    `nodes` is None where the tree is too large to be listed all the time, `leases` where the runtime has none.
    """

    at_s: float
    model: ModelInfo
    stats: CacheStats
    nodes: tuple[CacheNode, ...] | None = ()
    leases: Leases | None = None


class Watcher:
    """Looks at a runtime again and again, through its restarts.

    `now` is the last look, `before` the one that rates count from, `trouble` why there is no newer one ("": there is).
    """

    def __init__(self, client: RadixClient) -> None:
        """Raises RadixloopError when the runtime does not answer: there is nothing to show yet."""
        self._client = client
        self.trouble = ""
        self.before = self.now = self._look(client.model_info())

    def look_again(self) -> None:
        try:
            # Another runtime may have come up at the same address, with another model.
            look = self._look(self._client.model_info() if self.trouble else self.now.model)
            if look.stats.uptime_s < self.now.stats.uptime_s:
                # It counts from zero: nothing to compare with.
                self.before = self.now = self._look(self._client.model_info())
            else:
                self.before, self.now = self.now, look
        except RadixloopError as error:
            self.trouble = str(error)
        else:
            self.trouble = ""

    def _look(self, model: ModelInfo) -> Look:
        stats = self._client.stats()
        return Look(time.monotonic(), model, stats, self._nodes(stats), self._leases())

    def _nodes(self, stats: CacheStats) -> tuple[CacheNode, ...] | None:
        if stats.nodes > NODES_AT_MOST:
            return None
        return tuple(self._client.nodes(head_tokens=HEAD_TOKENS))

    def _leases(self) -> Leases | None:
        try:
            return self._client.leases()
        except Unimplemented:
            return None
