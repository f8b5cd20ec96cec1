"""What an engine is made with."""

from __future__ import annotations

from dataclasses import dataclass, field

from radix.eviction import DEFAULT_POLICY
from runtime.drafting.drafts import DraftSettings
from runtime.scheduling.scheduling_order import DEFAULT_ORDER, DEFAULT_PASSES
from runtime.tiers.settings import TierSettings


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of the engine.

    Attributes:
        num_blocks, block_size: the KV pool.
        max_batch_tokens: tokens that one forward pass computes at most.
        max_running: choices that run at once.
        max_queue: requests that wait at most.
        order, passes, max_itl_s: see `runtime.scheduling.scheduler.Scheduler`.
        hold_back_s: see `wait_s` of `runtime.scheduling.program_door.ProgramDoor`; 0 is no door.
        drafts: None verifies none.
        leasable_share: of the pool, how much leases may cover together.
        record_events: keep block events for whoever takes them with `call(PrefixStore.events)`.
        explain_across_namespaces: let a verdict say that another namespace holds the prompt.
        kv_fill: what the pool's slots hold before they are written.
        verify_hits: share of the requests that hit to compute again when idle; see `runtime.hit_verifier`.
        cuda_graphs: on a CUDA GPU, record the decode steps of up to `max_running` choices.
        tiers: where to keep what leaves the pool.
    """

    num_blocks: int
    block_size: int = 16
    max_batch_tokens: int = 512
    max_running: int = 32
    max_queue: int = 256
    order: str = DEFAULT_ORDER
    passes: int = DEFAULT_PASSES
    max_itl_s: float | None = None
    hold_back_s: float = 0.0
    drafts: DraftSettings | None = None
    eviction: str = DEFAULT_POLICY
    leasable_share: float = 0.5
    record_events: bool = False
    explain_across_namespaces: bool = True
    kv_fill: float = 0.0
    verify_hits: float = 0.0
    cuda_graphs: bool = False
    tiers: TierSettings = field(default_factory=TierSettings)
