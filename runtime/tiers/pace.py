"""What fetching a block costs and what computing it costs, as lately measured."""

from __future__ import annotations

from collections.abc import Callable

# A measurement counts half after so many blocks, or tokens, more.
_HALF_LIFE_BLOCKS = 64
_HALF_LIFE_TOKENS = 4096
# What was slow a while ago is given another chance.
_FORGET_S = 60.0
# A step of fewer tokens, or of hardly more tokens than sequences, says nothing about prompts.
_PROMPT_TOKENS = 16


class Average:
    """A ratio of seconds to things that forgets."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._seconds = 0.0
        self._things = 0.0

    def add(self, seconds: float, things: int) -> None:
        kept = 0.5 ** (things / self._half_life)
        self._seconds = self._seconds * kept + seconds
        self._things = self._things * kept + things

    @property
    def each(self) -> float | None:
        """Seconds a thing; None before the first measurement."""
        return self._seconds / self._things if self._things else None


class CopyPace:
    """Seconds a block from each tier to the device.

    Args:
        tiers: how many there are.
        clock: seconds, never going back.
    """

    def __init__(self, tiers: int, clock: Callable[[], float]) -> None:
        self._averages = [Average(_HALF_LIFE_BLOCKS) for _ in range(tiers)]
        self._measured = [-1e9] * tiers
        self._clock = clock

    def record(self, tier: int, seconds: float, blocks: int) -> None:
        if blocks:
            self._averages[tier].add(seconds, blocks)
            self._measured[tier] = self._clock()

    def seconds_a_block(self, tier: int) -> float | None:
        """None where it was not measured lately."""
        if self._clock() - self._measured[tier] > _FORGET_S:
            return None
        return self._averages[tier].each


class PrefillCost:
    """Seconds a token of prefill, from steps that computed prompts."""

    def __init__(self) -> None:
        self._average = Average(_HALF_LIFE_TOKENS)

    def record(self, seconds: float, sequences: int, tokens: int) -> None:
        if tokens >= _PROMPT_TOKENS and tokens >= 4 * sequences:
            self._average.add(seconds, tokens)

    @property
    def seconds_a_token(self) -> float | None:
        return self._average.each
