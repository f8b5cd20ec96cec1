"""What each policy takes first."""

from __future__ import annotations

from itertools import count

import pytest

from radix import Namespace, PrefixStore
from radix.eviction import DEFAULT_POLICY, POLICIES
from radix.marks import Mark

NAMESPACE = Namespace()


class Cache:
    """A store of single-token blocks; every path is one token long unless said otherwise."""

    def __init__(self, policy: str, blocks: int = 8) -> None:
        self.ticks = count(1)
        self.store = PrefixStore(blocks, 1, policy, clock=lambda: float(next(self.ticks)))

    def send(self, *path: int, priority: int = 0, output: int = 0) -> None:
        """Serve a prompt, of which the last `output` tokens are generated."""
        seq = self.store.open([*path, 99], priority=priority)
        self.store.reserve(seq, len(path) - seq.length)
        prompt = max(len(path) - output, seq.length)
        self.store.commit(seq, path[seq.length : prompt])
        self.store.commit(seq, path[seq.length :], output=True)
        self.store.close(seq)

    def order(self, *paths: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Evict block by block; return the paths in the order in which they are no longer whole."""
        gone: list[tuple[int, ...]] = []
        while len(gone) < len(paths):
            assert self.store.evict(1) == 1
            gone += [path for path in paths if path not in gone and self.store.match(path) < len(path)]
        return gone


def test_lru_takes_what_was_used_longest_ago() -> None:
    cache = Cache("lru")
    for path in (1, 2, 3, 1):
        cache.send(path)
    assert cache.order((1,), (2,), (3,)) == [(2,), (3,), (1,)]


def test_lfu_takes_what_was_opened_least_often() -> None:
    cache = Cache("lfu")
    for path in (1, 1, 1, 2, 2, 3, 1, 3, 4):
        cache.send(path)
    # 2 and 3 were found once each, 1 thrice and 4 never.
    assert cache.order((1,), (2,), (3,), (4,)) == [(4,), (2,), (3,), (1,)]


def test_slru_takes_what_was_never_found_again_first() -> None:
    cache = Cache("slru")
    for path in (1, 1, 1, 2, 2, 3, 4):
        cache.send(path)
    # Among those that were, how often does not count.
    assert cache.order((1,), (2,), (3,), (4,)) == [(3,), (4,), (1,), (2,)]


def test_priority_takes_the_lowest_first_and_the_last_request_decides() -> None:
    cache = Cache("priority")
    cache.send(1, priority=2)
    cache.send(2, priority=0)
    cache.send(3, priority=1)
    cache.send(4, priority=5)
    for path, priority in ((1, 2), (2, 0), (3, 1), (4, 0)):
        cache.send(path, priority=priority)
    assert cache.order((1,), (2,), (3,), (4,)) == [(2,), (4,), (3,), (1,)]


def test_agent_takes_left_branches_first_until_somebody_comes_back_to_them() -> None:
    cache = Cache("agent")
    for path in (1, 2, 3, 4):
        cache.send(path)
    cache.store.retention.supersede([3], NAMESPACE)
    cache.store.retention.supersede([4], NAMESPACE)
    cache.send(4)
    assert cache.order((1,), (2,), (3,), (4,)) == [(3,), (1,), (2,), (4,)]


def test_agent_keeps_the_shared_part_of_a_branch_that_was_left() -> None:
    cache = Cache("agent")
    cache.send(7)
    cache.send(1, 2, 3, 4)
    cache.store.retention.supersede([1, 2, 3, 4], NAMESPACE, 2)
    cache.store.evict(2)
    assert cache.store.match([1, 2, 3, 4]) == 2
    assert cache.store.match([7]) == 1
    assert cache.order((7,), (1, 2)) == [(7,), (1, 2)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_output_goes_before_the_prompt_that_it_grew_from(policy: str) -> None:
    cache = Cache(policy)
    cache.send(1, 2, 3, 4, output=2)
    cache.store.evict(2)
    assert cache.store.match([1, 2, 3, 4]) == 2


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"agent"}))
def test_only_agent_knows_of_left_branches(policy: str) -> None:
    orders = []
    for told in (False, True):
        cache = Cache(policy)
        for path in (1, 2, 3):
            cache.send(path)
        if told:
            cache.store.retention.supersede([3], NAMESPACE)
        orders.append(cache.order((1,), (2,), (3,)))
    assert orders[0] == orders[1] == [(1,), (2,), (3,)]


def test_agent_is_what_a_store_uses_unless_told() -> None:
    assert DEFAULT_POLICY == "agent"
    store = PrefixStore(4, 1)
    for token in (1, 2):
        seq = store.open([token, 99])
        store.reserve(seq, 1)
        store.commit(seq, [token])
        store.close(seq)
    store.retention.supersede([2], NAMESPACE)
    store.evict(1)
    assert store.match([1]) == 1
    assert store.match([2]) == 0


def test_a_block_of_a_large_tree_costs_no_more_looks_than_one_of_a_small(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    lru = POLICIES["lru"]

    def counted(tail: Mark) -> tuple[float, ...]:
        nonlocal looks
        looks += 1
        return lru(tail)

    monkeypatch.setitem(POLICIES, "lru", counted)
    costs = []
    for leaves in (100, 5_000):
        cache = Cache("lru", blocks=2 * leaves + 8)
        for leaf in range(leaves):
            cache.send(1, 2, 100 + leaf)
        looks = 0
        for used in range(50):
            # The order changes all the time.
            cache.store.close(cache.store.open([1, 2, 100 + leaves - 1 - used, 99]))
            assert cache.store.evict(1) == 1
        costs.append(looks)
    small, large = costs
    assert small == large
