"""The engine's books since its start: plain integers that one thread writes and anybody reads.

That thread is the engine's; only `refused` is written by the one that submits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radix import Cause


@dataclass
class EngineCounters:
    """Tokens unless the name says otherwise.

    Attributes:
        prompt_tokens: of all admitted requests.
        lookup_tokens: prompt tokens that were looked up in the cache (all but bypassing requests').
        hit_tokens: of these, found at first admission.
        host_hit_tokens, disk_hit_tokens: of these, fetched from host memory and from disk; the rest was in the pool.
        computed_tokens: prompt tokens that went through a forward pass.
        draft_tokens, accepted_draft_tokens: that were verified; of these, that became output.
        missed_tokens: prompt tokens that were looked up and not found, by cause as of first admission.
    """

    requests: int = 0
    prompt_tokens: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    host_hit_tokens: int = 0
    disk_hit_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    steps: int = 0
    running: int = 0
    waiting: int = 0
    missed_tokens: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
