"""One trace through one machine with tiers, beside the same device alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from radix.belady import belady
from radix.simulate import Ideal, serve_all, simulate
from radix.tiered.layout import Layout
from radix.tiered.service import TieredService
from radix.traces import Trace


@dataclass(frozen=True, slots=True)
class TieredRun:
    """One trace in one layout under one policy.

    Attributes:
        live: sessions side by side; None for calls in file order.
        capacity_tokens, capacity_bytes, found_tokens, hit_rates: by tier; a tier's hit rate is its share of all input.
        lru_hit_rate: of the device alone under `lru`.
        belady_hit_rate: of the best order of eviction on the device alone.
        optimum_hit_rate: of the best order of eviction on all tiers' blocks together.
        ideal_hit_rate: of a cache that never forgets.
        declined_tokens: they lay in a tier and were cheaper to compute.
        ttft_s, lru_ttft_s, cold_ttft_s: seconds of prefill and copies of the mean call, with tiers, with the device
            alone under `lru`, and without a cache. Nothing waits for anything else.
        saved_s: what the tiers save of the device alone, all calls together.
    """

    trace: str
    format: str
    live: int | None
    policy: str
    model: str
    dtype: str
    bytes_per_token: int
    block_size: int
    sessions: int
    calls: int
    input_tokens: int
    capacity_tokens: dict[str, int]
    capacity_bytes: dict[str, int]
    found_tokens: dict[str, int]
    hit_rates: dict[str, float]
    hit_rate: float
    lru_hit_rate: float
    belady_hit_rate: float
    optimum_hit_rate: float
    ideal_hit_rate: float
    declined_tokens: int
    bandwidth: dict[str, int]
    prefill_rate: int
    ttft_s: float
    lru_ttft_s: float
    cold_ttft_s: float
    saved_s: float
    refused_calls: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def simulate_tiers(
    trace: Trace,
    layout: Layout,
    *,
    best: Ideal,
    block_size: int,
    policy: str,
    live: int | None = None,
    on_call: Callable[[int], None] | None = None,
) -> TieredRun:
    """Drive a new store and its tiers with every call of the trace, and a store of the device alone.

    Args:
        best: what `radix.simulate.ideal` returned for this trace and block size.
        block_size: tokens a block; in a hash-id trace it is `trace.unit`.
        on_call: told how many calls are done, of both passes together.

    Raises:
        InvalidArgument: a tier that holds no block, or an unknown policy.
    """
    service = TieredService(trace, layout, block_size, policy)
    started = time.perf_counter()
    cached = refused = 0
    for found, fitted in serve_all(trace, service.store, service.serve, on_call):
        cached += found
        refused += not fitted
    seconds = time.perf_counter() - started
    calls, total = len(trace.calls), trace.input_tokens
    tokens = {name: blocks * block_size for name, blocks in service.blocks.items()}
    alone = simulate(
        trace,
        tokens["device"],
        best=best,
        block_size=block_size,
        policy="lru",
        on_call=None if on_call is None else lambda done: on_call(calls + done),
    )
    ttft = ((total - cached) / layout.prefill_rate + service.fetch_seconds) / calls
    lru_ttft = (total - alone.cached_tokens) / layout.prefill_rate / calls
    return TieredRun(
        trace=str(trace.file),
        format=trace.format,
        live=live,
        policy=policy,
        model=layout.shape.name,
        dtype=layout.dtype,
        bytes_per_token=layout.bytes_per_token,
        block_size=block_size,
        sessions=trace.sessions,
        calls=calls,
        input_tokens=total,
        capacity_tokens=tokens,
        capacity_bytes=dict(layout.sizes),
        found_tokens=dict(service.found_tokens),
        hit_rates={name: found / total for name, found in service.found_tokens.items()},
        hit_rate=cached / total,
        lru_hit_rate=alone.hit_rate,
        belady_hit_rate=alone.belady_hit_rate,
        optimum_hit_rate=belady(best.gaps, sum(tokens.values()) // trace.unit) / total,
        ideal_hit_rate=best.cached_tokens / total,
        declined_tokens=service.declined_tokens,
        bandwidth={name: layout.bandwidth[name] for name in tokens if name != "device"},
        prefill_rate=layout.prefill_rate,
        ttft_s=ttft,
        lru_ttft_s=lru_ttft,
        cold_ttft_s=total / layout.prefill_rate / calls,
        saved_s=(lru_ttft - ttft) * calls,
        refused_calls=refused,
        seconds=seconds,
    )
