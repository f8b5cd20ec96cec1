"""How busy the runtime is, as VllmEngine tells it: on request, and with the KV events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from smg_grpc_proto import vllm_engine_pb2
from smg_grpc_proto.generated import common_pb2

from runtime.monitoring.last_stats import LastKnownStats
from runtime.services.service_context import ServiceContext

# Figures of the pool may be so old: the engine is asked between two steps, and nobody waits for it.
_FRESH_S = 0.5
_RATE_WINDOW_S = 1.0
# As the router's own servicers do: a record that stands still is repeated after a second, then every five.
_REPEAT_S = 1.0
_IDLE_REPEAT_S = 5.0
_REPEATS_UNTIL_IDLE = 2
# What a change is, for shares and for tokens a second.
_SHARE_STEP = 0.005
_RATE_STEP = 0.05
_RATE_STEP_TOKENS = 50.0


@dataclass(frozen=True)
class Load:
    """Figures of one moment. `used` is the share of the pool that running requests hold: the rest can be had."""

    running: int
    waiting: int
    max_running: int
    used: float
    used_tokens: int
    pool_tokens: int
    tokens_per_s: float
    hit_rate: float

    def moved(self, last: Load) -> bool:
        """Whether a router would decide differently than by `last`."""
        if (self.running, self.waiting) != (last.running, last.waiting):
            return True
        rate = abs(self.tokens_per_s - last.tokens_per_s)
        least = min(_RATE_STEP_TOKENS, _RATE_STEP * max(self.tokens_per_s, last.tokens_per_s))
        return abs(self.used - last.used) > _SHARE_STEP or rate > least


class LoadBook:
    """Reads the load without waiting for anybody. On the event loop's thread only."""

    def __init__(self, shared: ServiceContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = shared
        self._stats = LastKnownStats(shared.engine)
        self._clock = clock
        self._counted_at = clock()
        self._counted_tokens = 0
        self._rate = 0.0

    def read(self) -> Load:
        shared, counters = self._shared, self._shared.engine.counters
        stats, _ = self._stats.read(wait_s=0.0, fresh_s=_FRESH_S)
        used = 0 if stats is None else stats.active_blocks
        return Load(
            running=counters.running,
            waiting=counters.waiting,
            max_running=shared.config.max_running,
            used=used / shared.num_blocks,
            used_tokens=used * shared.config.block_size,
            pool_tokens=shared.num_blocks * shared.config.block_size,
            tokens_per_s=self._tokens_per_s(counters.output_tokens),
            hit_rate=counters.hit_tokens / counters.lookup_tokens if counters.lookup_tokens else 0.0,
        )

    def _tokens_per_s(self, tokens: int) -> float:
        elapsed = self._clock() - self._counted_at
        if elapsed >= _RATE_WINDOW_S:
            self._rate = (tokens - self._counted_tokens) / elapsed
            self._counted_at += elapsed
            self._counted_tokens = tokens
        return self._rate


def scheduler_load(load: Load) -> vllm_engine_pb2.SchedulerLoad:
    """The load as GetLoads answers it."""
    return vllm_engine_pb2.SchedulerLoad(
        dp_rank=0,
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_used_tokens=load.used_tokens,
        max_total_num_tokens=load.pool_tokens,
        token_usage=load.used,
        gen_throughput=load.tokens_per_s,
        cache_hit_rate=load.hit_rate,
        utilization=load.running / load.max_running,
        max_running_requests=load.max_running,
    )


class LoadRecords:
    """The records on one subscriber's stream: with each batch, and alone when the load moved or has not for a while."""

    def __init__(self, read: Callable[[], Load], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._sample = 0
        self._last: Load | None = None
        self._sent_at = clock()
        self._repeats = 0

    def with_batch(self) -> common_pb2.EngineLoad:
        """The record for a batch of events."""
        self._repeats = 0
        return self._record(self._read(), whole=self._last is None)

    def alone(self) -> common_pb2.EngineLoad | None:
        """The record to send without events, if one is due."""
        load = self._read()
        moved = self._last is None or load.moved(self._last)
        wait_s = _REPEAT_S if self._repeats < _REPEATS_UNTIL_IDLE else _IDLE_REPEAT_S
        if not moved and self._clock() - self._sent_at < wait_s:
            return None
        self._repeats = 0 if moved else self._repeats + 1
        record = self._record(load, whole=True)
        record.load_only = True
        return record

    def _record(self, load: Load, *, whole: bool) -> common_pb2.EngineLoad:
        self._last = load
        self._sent_at = self._clock()
        self._sample += 1
        record = common_pb2.EngineLoad(
            running_requests=load.running,
            waiting_requests=load.waiting,
            token_usage=load.used,
            active_token_usage=load.used,
            gen_throughput=load.tokens_per_s,
            max_running_requests=load.max_running,
            sample=self._sample,
        )
        if whole:
            record.cache_hit_rate = load.hit_rate
            record.num_used_tokens = load.used_tokens
            record.max_total_num_tokens = load.pool_tokens
        return record
