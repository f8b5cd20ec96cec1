"""What a scrape or a client is told of the tiers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierBooks:
    """One tier now, and since the start.

    Attributes:
        blocks, used_blocks: slots, and those that hold a block or are about to.
        block_bytes: of one.
        fetched_tokens: that came from it to the pool.
        written_blocks, failed_blocks: that came to it; that could not be written, or not be read.
        lost_blocks: that left it and were nowhere else.
        given_up: it did not answer, and is not used any more.
    """

    name: str
    blocks: int
    used_blocks: int
    block_bytes: int
    fetched_tokens: int
    written_blocks: int
    failed_blocks: int
    lost_blocks: int
    given_up: bool


@dataclass(frozen=True, slots=True)
class TiersBooks:
    """All tiers, the fastest first. declined_tokens: that were there and cheaper to compute."""

    tiers: tuple[TierBooks, ...]
    declined_tokens: int
