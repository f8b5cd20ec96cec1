"""What the publisher knows of the tree: a copy outside the engine's thread, and what Redis has not seen of it yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from radix import NodeInfo
from radix.metadata_schema import NodeRecord

_log = logging.getLogger(__name__)

Event = dict[str, str | int]

# Above this many events a reader does better to read the tree again, and one event says so.
MAX_PENDING_EVENTS = 2_000


@dataclass
class TreeChange:
    """What changed since Redis was last written.

    Attributes:
        nodes: hash fields to set, node id -> JSON.
        removed: hash fields to delete.
        events: in order, without their sequence numbers.
        dropped_events: events that one `snapshot` event stands for.
    """

    nodes: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    dropped_events: int = 0


class TreeMirror:
    """Holds one record a node, so a lost Redis can be filled again without stopping the engine for it.

    Args:
        decode: text of int32 token ids; called from the thread that calls `apply`.
    """

    def __init__(self, decode: Callable[[npt.NDArray[np.int32]], str]) -> None:
        self._decode = decode
        self._records: dict[int, NodeRecord] = {}
        self._heads: dict[int, bytes] = {}
        self._dirty: set[int] = set()
        self._removed: set[int] = set()
        self._events: list[Event] = []
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def apply(self, upserted: Iterable[NodeInfo], removed: Iterable[int], to_unix_s: float) -> None:
        """Take over what the store reported; `to_unix_s` added to the store's clock gives Unix time."""
        for info in upserted:
            self._upsert(info, to_unix_s)
        for node_id in removed:
            if self._records.pop(node_id, None) is not None:
                del self._heads[node_id]
                self._dirty.discard(node_id)
                self._removed.add(node_id)
                self._note({"event": "removed", "node": node_id})

    def take_change(self) -> TreeChange:
        """What Redis lacks; the mirror takes it for written from here on."""
        change = TreeChange(
            nodes={str(node_id): self._records[node_id].to_json() for node_id in sorted(self._dirty)},
            removed=[str(node_id) for node_id in sorted(self._removed)],
            events=[self.snapshot_event()] if self._dropped else self._events,
            dropped_events=self._dropped,
        )
        self._forget_pending()
        return change

    def all_nodes(self) -> Iterator[tuple[str, str]]:
        """Every hash field and value. Nothing is pending afterwards."""
        self._forget_pending()
        for node_id, record in self._records.items():
            yield str(node_id), record.to_json()

    def snapshot_event(self) -> Event:
        """The event that tells a reader to read the nodes again."""
        return {"event": "snapshot", "nodes": len(self._records)}

    def _forget_pending(self) -> None:
        self._dirty, self._removed, self._events, self._dropped = set(), set(), [], 0

    def _upsert(self, info: NodeInfo, to_unix_s: float) -> None:
        before = self._records.get(info.id)
        record = NodeRecord(
            id=info.id,
            parent=info.parent_id,
            salt=info.namespace.salt,
            adapter=info.namespace.adapter,
            start=info.start,
            tokens=info.tokens,
            blocks=info.blocks,
            hits=info.hits,
            last_used=info.last_used + to_unix_s,
            holders=info.holders,
            children=info.children,
            head=self._head_text(info, before),
        )
        self._records[info.id] = record
        self._dirty.add(info.id)
        place = (record.parent, record.start, record.tokens)
        if before is None or place != (before.parent, before.start, before.tokens):
            self._note(
                {
                    "event": "stored" if before is None else "changed",
                    "node": record.id,
                    "parent": record.parent,
                    "namespace": record.namespace,
                    "start": record.start,
                    "tokens": record.tokens,
                }
            )

    def _head_text(self, info: NodeInfo, before: NodeRecord | None) -> str:
        ids = np.ascontiguousarray(info.head, dtype=np.int32)
        raw = ids.tobytes()
        if before is not None and self._heads[info.id] == raw:
            return before.head
        self._heads[info.id] = raw
        try:
            return self._decode(ids)
        except Exception:
            # A tokenizer's own bug must not cost the rest of the tree.
            _log.debug("cannot decode the head of node %d", info.id, exc_info=True)
            return " ".join(f"<{token}>" for token in ids.tolist())

    def _note(self, event: Event) -> None:
        if self._dropped or len(self._events) >= MAX_PENDING_EVENTS:
            self._dropped += 1 + len(self._events)
            self._events = []
        else:
            self._events.append(event)
