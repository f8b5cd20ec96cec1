"""Leases where tiers lie behind the device: they bias what goes down, and when they end they say what goes first."""

from __future__ import annotations

import numpy as np

from radix import Namespace, PrefixStore
from radix.cold import ColdIndex, ColdTier
from tests.timing import ManualClock

SIZE = 4
NS = Namespace("w")
OLD, LEASED = [1] * 8, [2] * 8


class Fixture:
    """A store in which LEASED was used after OLD, and is leased for five seconds."""

    def __init__(self, tier: ColdTier | None) -> None:
        self.clock = ManualClock()
        self.index = None if tier is None else ColdIndex(SIZE, [tier], clock=self.clock)
        self.store = PrefixStore(16, SIZE, clock=self.clock, cold=self.index, copies_take_time=False)
        for tokens in (OLD, LEASED):
            self.use(tokens)
        self.store.retention.lease(LEASED, NS, ttl_s=5)

    def use(self, tokens: list[int]) -> None:
        self.clock.now += 1
        seq = self.store.open(tokens, NS)
        self.store.reserve(seq, len(tokens) - seq.length)
        self.store.commit(seq, tokens[seq.length :])
        self.store.close(seq)

    def evict(self, blocks: int) -> None:
        self.store.evict(blocks)
        if self.store.demoter is not None:
            for demotion in self.store.demoter.take():
                self.store.demoter.done(demotion)

    def on_device(self, tokens: list[int]) -> int:
        return self.store.match(tokens, NS)

    def below(self, tokens: list[int]) -> int:
        assert self.index is not None
        hits = self.index.lookup(np.array(tokens, dtype=np.int32), NS, self.on_device(tokens))
        return sum(hit.tokens for hit in hits)


def host(slots: int = 8) -> ColdTier:
    return ColdTier("host", slots)


def test_what_is_leased_goes_down_last() -> None:
    it = Fixture(host())
    it.evict(2)
    assert (it.on_device(OLD), it.below(OLD), it.on_device(LEASED)) == (0, 8, 8)


def test_what_was_leased_goes_down_first_once_the_lease_has_expired() -> None:
    it = Fixture(host())
    it.clock.now += 10
    it.evict(2)
    assert (it.on_device(LEASED), it.below(LEASED), it.on_device(OLD)) == (0, 8, 8)


def test_a_use_after_the_lease_makes_it_like_any_other() -> None:
    it = Fixture(host())
    it.clock.now += 10
    it.store.retention.expire()
    it.use([*LEASED, 7])
    it.evict(2)
    assert (it.on_device(LEASED), it.on_device(OLD)) == (8, 0)


def test_without_tiers_an_expired_lease_is_like_any_other() -> None:
    it = Fixture(None)
    it.clock.now += 10
    it.evict(2)
    assert (it.on_device(LEASED), it.on_device(OLD)) == (8, 0)


def test_a_lease_that_runs_keeps_a_block_in_its_tier() -> None:
    it = Fixture(host(4))
    it.evict(4)
    assert (it.below(OLD), it.below(LEASED)) == (8, 8)
    for more in ([3] * 8, [4] * 8):
        it.use(more)
        it.evict(2)
    # The tier holds four blocks: what is not leased made way, though it came later.
    assert (it.below(LEASED), it.below(OLD), it.below([3] * 8)) == (8, 0, 0)
    it.clock.now += 10
    for more in ([5] * 8, [6] * 8):
        it.use(more)
        it.evict(2)
    assert it.below(LEASED) == 0
