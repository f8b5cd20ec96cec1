"""A limited namespace makes room among its own, and what others hold is not even looked at."""

from __future__ import annotations

from random import Random

import pytest

from radix import Namespace
from radix.cold import ColdIndex, ColdTier, Entry, scope_of
from radix.cold.invariants import check_cold

LIMITED, FREE = Namespace("w", salt="a"), Namespace("w", salt="b")


def put(index: ColdIndex, namespace: Namespace, n: int, *, spare: bool = False) -> Entry | None:
    block = n.to_bytes(4, "little")
    entry = index.store(block * 4, scope_of(namespace), block, tier=0, spare=spare)
    if entry is not None:
        index.landed(entry, 0, spare=spare)
    return entry


def plain_victim(tier: ColdTier, scope: bytes, spares_kept: int) -> Entry | None:
    orders = [tier.primary, tier.spare] if len(tier.spare) <= spares_kept else [tier.spare, tier.primary]
    return next((entry for order in orders for entry in order if entry.scope == scope and not entry.busy[0]), None)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spares_kept", [0, 4])
def test_a_namespace_keeps_to_its_share_and_gives_up_what_it_used_longest_ago(seed: int, spares_kept: int) -> None:
    random = Random(seed)
    tier = ColdTier("disk", 20, keeps_promoted=True, spares_kept=spares_kept)
    index = ColdIndex(1, [tier], clock=lambda: 0.0)
    scope, limit = scope_of(LIMITED), None
    for n in range(200):
        if random.random() < 0.05:
            limit = random.choice([None, 3, 8])
            index.set_quota(LIMITED, None if limit is None else limit / tier.capacity)
        before = tier.by_scope[scope]
        namespace = random.choice([LIMITED, FREE])
        full = namespace == LIMITED and limit is not None and before >= limit
        wanted = plain_victim(tier, scope, spares_kept) if full else None
        entry = put(index, namespace, n, spare=random.random() < 0.3)
        if full:
            assert tier.by_scope[scope] == before
            assert entry is None or (wanted is not None and wanted.dead)
        if random.random() < 0.3:
            index.touch(random.choice(list(index.all())))
        if random.random() < 0.3:
            tier.queue(random.choice(list(index.all())), spare=random.random() < 0.5, first=random.random() < 0.3)
        check_cold(index)


def test_few_are_looked_at_however_many_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Watched(Entry):
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += name == "busy"
            return super().__getattribute__(name)

    monkeypatch.setattr("radix.cold.index.Entry", Watched)
    index = ColdIndex(1, [ColdTier("disk", 4_000)], clock=lambda: 0.0)
    for n in range(3_000):
        put(index, FREE, n)
    index.set_quota(LIMITED, 10 / 4_000)
    looks = 0
    for n in range(3_000, 3_100):
        assert put(index, LIMITED, n) is not None
    assert index.tiers[0].by_scope[scope_of(LIMITED)] == 10
    assert looks < 1_000
