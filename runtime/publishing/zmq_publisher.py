"""Publishes KV events over ZeroMQ as vLLM and SGLang do: PUB for what happens, ROUTER for what was missed.

The format has no field for an incarnation. After a restart a reader sees a gap in the numbers (see
`KvEventHub.first_number`), asks for what it missed, and the answer begins by clearing.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import zmq

from runtime.publishing.kv_events import AllBlocksCleared, CacheEvent, HistoryGone, KvEventHub, Snapshot
from runtime.publishing.zmq_wire import Layout, encode_batch
from runtime.settings import BadConfig

log = logging.getLogger(__name__)

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_BATCHES_AT_A_TIME = 256
_SNAPSHOT_WAIT_S = 10.0
_LINGER_MS = 500


@dataclass
class ZmqCounters:
    """What the publisher did, in batches but for `replays` and `snapshots`.

    Attributes:
        published: sent to whoever subscribes; a subscriber that is full misses some and sees a gap.
        dropped: never sent, since the publisher fell behind the history; replay answers them with a snapshot.
        replays: requests for what was missed.
        snapshots: those of them that history could not answer.
    """

    published: int = 0
    dropped: int = 0
    replays: int = 0
    snapshots: int = 0


class ZmqPublisher:
    """A thread that reads the hub and owns the two sockets.

    Args:
        take_snapshot: runs `KvEventHub.snapshot` on the engine thread.
        endpoint, replay: what to bind; `replay` None opens no replay socket.
        medium: where the KV lies, "GPU" or "CPU".

    Attributes:
        endpoint, replay_endpoint: as bound, with the real port where 0 was asked for.
        first_number: what the batch with sequence 0 goes by.

    Raises:
        BadConfig: an address cannot be bound.
    """

    def __init__(
        self,
        hub: KvEventHub,
        take_snapshot: Callable[[], Future[Snapshot]],
        *,
        endpoint: str,
        replay: str | None,
        topic: str,
        medium: str,
        layout: Layout = "map",
    ) -> None:
        self.counters = ZmqCounters()
        self._hub = hub
        self._take_snapshot = take_snapshot
        self._topic = topic.encode()
        self._medium = medium
        self._layout: Layout = layout
        self.first_number = hub.first_number
        self._at = 0
        self._stopping = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, hub.kept)
        self._router: zmq.Socket[bytes] | None = None
        try:
            self.endpoint = _bind(self._pub, endpoint, "kv_events_endpoint")
            self.replay_endpoint = None
            if replay is not None:
                self._router = self._context.socket(zmq.ROUTER)
                # A whole history and its end must fit, since a ROUTER drops what does not.
                self._router.setsockopt(zmq.SNDHWM, hub.kept + 16)
                self.replay_endpoint = _bind(self._router, replay, "kv_events_replay")
        except BadConfig:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._loop, name="kv-events-zmq", daemon=True)

    def start(self) -> None:
        self._hub.subscribe(self._wake)
        self._thread.start()

    def close(self) -> None:
        """Publish what is left and close the sockets. Idempotent."""
        self._hub.unsubscribe(self._wake)
        self._stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._context.destroy(linger=_LINGER_MS)

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except BlockingIOError:
            # So many bytes wait there that the thread is awake anyhow.
            return

    # On the publisher's thread

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_out.fileno(), zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll())
            try:
                if self._wake_out.fileno() in ready:
                    self._wake_out.recv(4096)
                self._publish()
                if self._router is not None and self._router in ready:
                    self._answer(self._router)
            except Exception:
                log.exception("publishing KV events over ZeroMQ failed")
        self._publish()

    def _publish(self) -> None:
        while True:
            try:
                batches = self._hub.batches(self._at, _BATCHES_AT_A_TIME)
            except HistoryGone:
                kept_from = self._hub.next_sequence - self._hub.kept // 2
                self.counters.dropped += kept_from - self._at
                self._at = kept_from
                continue
            if not batches:
                return
            for batch in batches:
                payload = encode_batch(batch.timestamp, batch.events, self._medium, self._layout)
                self._at = batch.sequence + 1
                self._pub.send_multipart((self._topic, self._number(batch.sequence), payload))
                self.counters.published += 1

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        frames = router.recv_multipart()
        # From a REQ socket with an empty frame before the request, from a DEALER with one or without.
        if len(frames) not in (2, 3) or len(frames[-1]) != 8 or b"".join(frames[1:-1]):
            log.warning("a replay request must be eight bytes, the first number wanted; got %d frames", len(frames))
            return
        to = frames[:-1]
        self.counters.replays += 1
        self._replay(router, to, max(0, int.from_bytes(frames[-1], "big") - self.first_number))
        router.send_multipart((*to, END_OF_REPLAY, b""))

    def _replay(self, router: zmq.Socket[bytes], to: list[bytes], at: int) -> None:
        try:
            while batches := self._hub.batches(at, _BATCHES_AT_A_TIME):
                for batch in batches:
                    payload = encode_batch(batch.timestamp, batch.events, self._medium, self._layout)
                    router.send_multipart((*to, self._number(batch.sequence), payload))
                    at = batch.sequence + 1
        except HistoryGone:
            self.counters.snapshots += 1
            snapshot = self._take_snapshot().result(_SNAPSHOT_WAIT_S)
            events: tuple[CacheEvent, ...] = (AllBlocksCleared(), *snapshot.events)
            payload = encode_batch(snapshot.timestamp, events, self._medium, self._layout)
            router.send_multipart((*to, self._number(snapshot.sequence), payload))

    def _number(self, sequence: int) -> bytes:
        return (self.first_number + sequence).to_bytes(8, "big")


def _bind(bound: zmq.Socket[bytes], address: str, field: str) -> str:
    try:
        bound.bind(address)
    except zmq.ZMQError as error:
        raise BadConfig(field, f"{address}: {error.strerror or error}") from None
    return str(bound.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
