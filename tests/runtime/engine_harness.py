"""Drives a real engine from a test: submit, wait, look at the books."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np

from radix import Namespace, StoreStats
from runtime.engine import Engine, Handle
from runtime.engine_config import EngineConfig
from runtime.events import DeltaEvent, Event, FailedEvent, FinishedEvent, StartedEvent
from runtime.grammar import JobGrammar
from runtime.models.loaded_model import LoadedModel
from runtime.request import GenerateJob
from runtime.sampling.sampling_params import SamplingParams

WAIT_S = 120.0


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens of the tiny model, none of them special."""
    return np.random.default_rng(seed).integers(6, 200, length).tolist()


class Reply:
    """What one request was told, gathered as it comes."""

    def __init__(self, on_event: Callable[[Reply, Event], None] | None = None) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()
        self.handle: Handle | None = None
        self._on_event = on_event

    def take(self, events: list[Event]) -> None:
        for event in events:
            assert not self.ended.is_set(), f"an event after the end: {event}"
            self.events.append(event)
            if self._on_event is not None:
                self._on_event(self, event)
            if isinstance(event, (FinishedEvent, FailedEvent)):
                self.ended.set()

    def wait(self) -> Reply:
        assert self.ended.wait(WAIT_S), "the request did not end"
        return self

    @property
    def error(self) -> Exception | None:
        return next((e.error for e in self.events if isinstance(e, FailedEvent)), None)

    @property
    def started(self) -> StartedEvent:
        first = self.events[0]
        assert isinstance(first, StartedEvent)
        return first

    @property
    def finished(self) -> FinishedEvent:
        last = self.wait().events[-1]
        assert isinstance(last, FinishedEvent), last
        return last

    @property
    def tokens(self) -> list[int]:
        return list(self.finished.outputs[0])

    def deltas(self, index: int = 0) -> list[DeltaEvent]:
        return [e for e in self.events if isinstance(e, DeltaEvent) and e.index == index]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas(index))


class Harness:
    """An engine with helpers around it."""

    def __init__(self, loaded: LoadedModel, **config: Any) -> None:
        self.loaded = loaded
        self.config = EngineConfig(**{"kv_fill": float("nan"), "block_size": 16, "num_blocks": 512, **config})
        self.engine = Engine(loaded, self.config)
        self.namespace = Namespace(loaded.info.fingerprint)

    def submit(
        self,
        tokens: Iterable[int],
        *,
        namespace: Namespace | None = None,
        bypass_cache: bool = False,
        prefill_only: bool = False,
        public_tokens: int = 0,
        program: str | None = None,
        grammar: JobGrammar | None = None,
        on_event: Callable[[Reply, Event], None] | None = None,
        **sampling: Any,
    ) -> Reply:
        reply = Reply(on_event)
        job = GenerateJob(
            request_id="test",
            tokens=np.array(list(tokens), dtype=np.int32),
            namespace=namespace or self.namespace,
            sampling=SamplingParams(**{"ignore_eos": True, **sampling}),
            bypass_cache=bypass_cache,
            prefill_only=prefill_only,
            public_tokens=public_tokens,
            program=program,
            grammar=grammar,
        )
        reply.handle = self.engine.submit(job, reply.take)
        return reply

    def run(self, tokens: Iterable[int], **kwargs: Any) -> Reply:
        reply = self.submit(tokens, **kwargs)
        reply.finished  # noqa: B018
        return reply

    def flush(self) -> None:
        self.engine.call(lambda store: store.flush()).result(WAIT_S)

    def evict_all(self) -> None:
        self.engine.call(lambda store: store.evict(store.num_blocks)).result(WAIT_S)

    def check(self) -> StoreStats:
        """Every invariant of the store, now."""

        def look(store: Any) -> StoreStats:
            store.check()
            return store.stats()

        return self.engine.call(look).result(WAIT_S)

    def check_idle(self) -> StoreStats:
        """With no request left, nothing but the tree may hold a block."""
        stats = self.check()
        assert stats.open_sequences == 0
        assert stats.active_blocks == 0
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
        return stats


@contextmanager
def running(loaded: LoadedModel, **config: Any) -> Any:
    """A started engine whose books are checked at the end."""
    harness = Harness(loaded, **config)
    harness.engine.start()
    try:
        yield harness
        harness.check_idle()
    finally:
        harness.engine.shutdown(0)
