"""What the store promises to make room for, it makes room for: readers that step back, branches deep below a branch."""

from __future__ import annotations

import random
from itertools import count

import pytest

from radix import OutOfBlocks, PrefixStore, Sequence


def new_store(blocks: int, block_size: int) -> PrefixStore:
    return PrefixStore(blocks, block_size, "lru", clock=count().__next__)


def write(store: PrefixStore, seq: Sequence, tokens: list[int]) -> None:
    store.reserve(seq, len(tokens))
    store.commit(seq, tokens)


def cached(store: PrefixStore, tokens: list[int]) -> None:
    seq = store.open(tokens)
    write(store, seq, tokens[seq.length :])
    store.close(seq)


def test_what_a_reader_gave_up_can_be_evicted() -> None:
    store = new_store(4, 2)
    cached(store, [1, 2, 3, 4, 5])
    reader = store.open([1, 2, 3, 4, 5, 6])
    assert store.evict(1) == 0, "read to its end"
    assert store.drop_partial(reader) == 1
    assert reader.matched == reader.length == 4, "what is computed again was not reused"
    other = store.open([9, 9, 9, 9])
    write(store, other, [9, 9, 9, 9])
    store.check()
    assert store.match([1, 2, 3, 4, 5]) == 4


def test_a_branch_point_keeps_its_block_for_readers_however_deep_below() -> None:
    size = 16
    store = new_store(6, size)
    trunk = [1] * 17
    cached(store, [*trunk, 9])
    # Every path ends in the second block, so each reader writes a copy of that block.
    for path in ([2], [3, 4], [3, 5, 6], [3, 5, 7]):
        seq = store.open([*trunk, *path, 0])
        write(store, seq, [*trunk, *path][seq.length :])
        if path == [3, 4]:
            store.close(seq)
    store.check()
    more = store.open([8] * 2 * size)
    with pytest.raises(OutOfBlocks) as refused:
        store.reserve(more, 2 * size)
    assert refused.value.available == 1, "what only [3, 4] needed"
    store.reserve(more, size)
    assert len(more.table) == 1
    store.check()


def test_what_is_optional_does_not_cost_a_sequence_its_place_in_the_tree() -> None:
    store = new_store(2, 4)
    first, second = store.open([1, 2, 3, 8]), store.open([1, 2, 3, 9])
    write(store, first, [1, 2, 3])
    write(store, second, [1, 2, 3])
    store.close(first)
    assert store.free_blocks == 0, "the tree keeps the first one's block, the second reads its own"
    with pytest.raises(OutOfBlocks):
        store.reserve(second, 2, optional=True)
    assert store.match([1, 2, 3]) == 3
    store.reserve(second, 1, optional=True)
    store.reserve(second, 2)
    assert store.match([1, 2, 3]) == 0
    store.check()


@pytest.mark.parametrize("block_size", [2, 3, 16])
def test_a_storm_of_branches_is_always_given_what_was_promised(block_size: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        store = new_store(rng.choice([4, 6, 12]), block_size)
        alphabet = rng.choice([2, 3])
        base = [rng.randrange(alphabet) for _ in range(3 * block_size)]
        running: list[tuple[Sequence, list[int]]] = []
        for _ in range(60):
            action = rng.random()
            if action < 0.25 or not running:
                tokens = base[: rng.randrange(1, len(base))] + [rng.randrange(alphabet) for _ in range(3)]
                running.append((store.open(tokens), tokens))
            elif action < 0.65:
                at = rng.randrange(len(running))
                seq, tokens = running[at]
                if len(tokens) == seq.length:
                    tokens.append(rng.randrange(alphabet))
                fresh = tokens[seq.length :][: rng.choice([1, 2, 64])]
                blocks = len(seq.table)
                try:
                    store.reserve(seq, len(fresh))
                except OutOfBlocks:
                    if not store.drop_partial(seq):
                        store.close(seq)
                        running.pop(at)
                else:
                    assert seq.capacity >= seq.length + len(fresh), (seed, blocks)
                    store.commit(seq, fresh)
            elif action < 0.85:
                seq, tokens = running[rng.randrange(len(running))]
                if seq.length:
                    running.append((store.fork(seq), tokens[: seq.length]))
            elif action < 0.95:
                store.close(running.pop(rng.randrange(len(running)))[0])
            else:
                store.evict(1)
            store.check()
