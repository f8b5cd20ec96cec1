"""How much of a prefix that lies in tiers is worth fetching."""

from __future__ import annotations

from collections.abc import Sequence

# What any promotion takes, however few its bytes.
ROUND_TRIP_S = 0.002


def cheapest(
    blocks: Sequence[tuple[int, int]], seconds_a_block: Sequence[float | None], seconds_a_token: float | None
) -> tuple[int, float, float]:
    """Return how many of the blocks are worth fetching, and what these, or else all, cost to fetch and to compute.

    A block is of no use without those before it, so the choice is how far to go. What was never measured is tried.

    Args:
        blocks: (tier, tokens) of each, in order.
    """
    fetch = ROUND_TRIP_S
    compute = 0.0
    best, best_costs, best_gain = 0, (0.0, 0.0), 0.0
    for n, (tier, tokens) in enumerate(blocks, start=1):
        fetch += seconds_a_block[tier] or 0.0
        compute += tokens * (seconds_a_token or 0.0)
        gain = compute - fetch if seconds_a_token is not None else float(n)
        if gain > best_gain:
            best, best_costs, best_gain = n, (fetch, compute), gain
    return best, *(best_costs if best else (fetch, compute))
