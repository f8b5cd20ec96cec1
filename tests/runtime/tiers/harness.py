"""An engine over tiers, small enough that everything leaves its pool soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from radix.cold.invariants import check_cold
from runtime.models.loaded_model import LoadedModel
from runtime.tiers.settings import TierSettings
from tests.runtime.engine_harness import Harness, running
from tests.timing import eventually

BLOCKS = 12
SIZE = 4
MIB = 2**20


def prompts(n: int, length: int = 30, seed: int = 1) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(6, 200, length).tolist() for _ in range(n)]


@contextmanager
def tiered(loaded: LoadedModel, settings: TierSettings, **config: Any) -> Iterator[Harness]:
    """An engine whose books, and its tiers', are checked at the end."""
    sizes = {"num_blocks": BLOCKS, "block_size": SIZE, "max_batch_tokens": 16, **config}
    with running(loaded, tiers=settings, **sizes) as harness:
        yield harness
        settle(harness)
        tiers = harness.engine.tiers
        harness.engine.call(lambda store: check_cold(tiers.index)).result()


def settle(harness: Harness) -> None:
    """Wait until everything that went down is there, and nothing more is to go."""
    until(harness, lambda store: not harness.engine.tiers.unfinished)


def until(harness: Harness, condition: Callable[[Any], bool]) -> None:
    """Wait until the engine's thread finds that it is so."""
    assert eventually(lambda: harness.engine.call(condition).result())


def expected(loaded: LoadedModel, work: list[list[int]]) -> list[list[int]]:
    """What an engine without a cache answers."""
    with running(loaded, num_blocks=512, block_size=SIZE) as harness:
        return [harness.run(tokens, max_tokens=6, bypass_cache=True).tokens for tokens in work]
