"""The store over a cold index, against a model of what every slot of every tier holds."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random

import numpy as np
import pytest

from radix import BlockStored, Copy, LeaseRefused, Namespace, OutOfBlocks, PrefixStore, Sequence, block_hash
from radix.cold import ColdIndex, ColdTier, Demotion, Move, scope_of
from radix.cold.announcer import Announcer
from radix.cold.digests import PathHash, token_bytes
from radix.cold.invariants import check_cold

NAMESPACES = [Namespace("w"), Namespace("w", salt="x"), Namespace("w", adapter="x")]
SIZE = 4


def prefix_hashes(tokens: list[int], namespace: Namespace) -> list[int]:
    """One hash a position, over all tokens up to it: what the KV of that position depends on."""
    hashes, state = [], hash(namespace)
    for token in tokens:
        state = hash((state, token))
        hashes.append(state)
    return hashes


class ColdModel:
    """A store whose copies land when chance says so, some of them badly."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now = 0.0
        self.blocks = random.randint(2, 12)
        tiers = [
            ColdTier("host", random.randint(1, 12)),
            ColdTier("disk", random.randint(1, 20), keeps_promoted=True, spares_kept=random.choice([0, 2, 20])),
        ]
        keep = random.choice([(0,), (1,), (0, 1), (0, 1)])
        self.index = ColdIndex(SIZE, [tiers[t] for t in keep], clock=self.clock)
        self.store = PrefixStore(self.blocks, SIZE, clock=self.clock, cold=self.index, track_changes=True)
        assert self.store.demoter is not None
        places = dict(enumerate(tier.name for tier in self.index.tiers))
        self.announcer = Announcer(self.index, places, self.store.demoter.namespaces)
        # By tier and hash: what a reader of the events takes to be there.
        self.told: set[tuple[str, int]] = set()
        self.device = [[0] * SIZE for _ in range(self.blocks)]
        self.cold = [[[0] * SIZE for _ in range(tier.capacity)] for tier in self.index.tiers]
        self.demotions: list[Demotion] = []
        self.moves: list[Move] = []
        self.written: list[tuple[Namespace, list[int]]] = []
        self.open: list[tuple[Sequence, list[int]]] = []
        self.done: Counter[str] = Counter()

    def clock(self) -> float:
        return self.now

    def take(self) -> None:
        assert self.store.demoter is not None
        self.demotions += self.store.demoter.take()

    def back_up(self) -> None:
        """Copy what the device keeps to the last tier, as far as there is room."""
        if not self.written:
            return
        namespace, tokens = self.random.choice(self.written[-4:])
        ids = np.array(tokens, dtype=np.int32)
        scope = scope_of(namespace)
        path = PathHash(scope)
        parent = path.digest
        tier = len(self.index.tiers) - 1
        for i, block in enumerate(self.store.blocks_of(ids, namespace).tolist()):
            raw = token_bytes(ids[i * SIZE : (i + 1) * SIZE])
            if self.index.held(parent, raw, tier) is None:
                entry = self.index.store(parent, scope, raw, tier=tier, spare=True)
                if entry is not None:
                    self.store.demoter.lend(np.array([block], dtype=np.int32))
                    self.demotions.append(Demotion(entry, block, tier, spare=True))
                    self.done["back up"] += 1
            parent = path.add(raw)

    def ok(self) -> bool:
        return self.random.random() < 0.9

    def write(self) -> None:
        """Open on the device's match, promote what the tiers have, compute the rest; maybe stay open."""
        random = self.random
        most = self.blocks * SIZE
        namespace = random.choice(NAMESPACES)
        tokens: list[int] = []
        if self.written and random.random() < 0.8:
            namespace, known = random.choice(self.written[-8:])
            tokens = known[: random.randint(0, len(known))]
        tokens = (tokens + random.choices(range(3), k=random.randint(1, max(1, most // 2))))[:most]
        self.written.append((namespace, tokens))
        seq = self.store.open(tokens, namespace)
        copies, refused = self.reserve(seq, len(tokens) - seq.length)
        self.take()
        if refused is not None:
            self.store.close(seq)
            # Nothing but what is open or on its way may stand in the way.
            assert refused.leaving or self.open or -(-len(tokens) // SIZE) + 1 > self.blocks
            self.done["refused"] += 1
            return
        for copy in copies:
            self.device[copy.dst][: copy.tokens] = self.device[copy.src][: copy.tokens]
        hashes = prefix_hashes(tokens, namespace)
        self.check_device(seq, hashes)
        for hit in self.index.lookup(np.array(tokens[:-1], dtype=np.int32), namespace, seq.length):
            tier = self.index.begin_load(hit.entry)
            end = hit.index * SIZE + hit.tokens
            content = self.cold[tier][hit.entry.slots[tier]][: hit.tokens]
            assert content == hashes[hit.index * SIZE : end]
            ok = self.ok()
            if ok:
                self.device[int(seq.table[hit.index])][: hit.tokens] = content
                self.store.commit(seq, tokens[seq.length : end])
            self.index.loaded(hit.entry, tier, ok=ok, whole=ok and hit.tokens * 4 == len(hit.entry.tokens))
            self.done["load", tier] += 1
            if not ok:
                break
        for pos in range(seq.length, len(tokens)):
            self.device[int(seq.table[pos // SIZE])][pos % SIZE] = hashes[pos]
        self.store.commit(seq, tokens[seq.length :])
        if random.random() < 0.3:
            self.open.append((seq, hashes))
        else:
            self.store.close(seq)

    def reserve(self, seq: Sequence, n: int) -> tuple[list[Copy], OutOfBlocks | None]:
        try:
            return self.store.reserve(seq, n), None
        except OutOfBlocks as error:
            return [], error

    def close(self) -> None:
        if self.open:
            seq, _ = self.open.pop(self.random.randrange(len(self.open)))
            self.store.close(seq)

    def evict(self) -> None:
        self.store.evict(self.random.randint(1, 6))
        self.take()

    def land(self) -> None:
        """Carry out copies from the device that were asked for earlier."""
        assert self.store.demoter is not None
        for _ in range(self.random.randint(1, 6)):
            if self.demotions:
                demotion = self.demotions.pop(self.random.randrange(len(self.demotions)))
                ok = self.ok()
                if ok:
                    n = len(demotion.entry.tokens) // 4
                    slot = self.cold[demotion.tier][demotion.entry.slots[demotion.tier]]
                    slot[:n] = self.device[demotion.block][:n]
                self.store.demoter.done(demotion, ok=ok)
                self.done["demote"] += 1

    def move_down(self) -> None:
        if self.index.second >= 0:
            self.moves += self.index.spill(self.random.randint(0, 4))
            self.moves += self.index.save(self.random.randint(0, 3))

    def land_move(self) -> None:
        if self.moves:
            move = self.moves.pop(self.random.randrange(len(self.moves)))
            ok = self.ok()
            if ok:
                slots = move.entry.slots
                self.cold[move.target][slots[move.target]] = list(self.cold[move.source][slots[move.source]])
            self.index.moved(move, ok=ok)
            self.done["move", move.leaves] += 1

    def flush(self) -> None:
        if self.random.random() < 0.2:
            namespace = self.random.choice([*NAMESPACES, None])
            self.store.flush(namespace)
            self.index.flush(namespace)
            gone = [n for n in NAMESPACES if namespace in (None, n)]
            for some, tokens in self.written:
                assert some not in gone or not self.index.lookup(np.array(tokens, dtype=np.int32), some, 0)

    def quota(self) -> None:
        if self.random.random() < 0.2:
            self.index.set_quota(self.random.choice(NAMESPACES), self.random.choice([None, 0.2, 0.6]))

    def lease(self) -> None:
        if self.written and self.random.random() < 0.3:
            namespace, tokens = self.random.choice(self.written)
            with suppress(LeaseRefused):
                self.store.retention.lease(tokens, namespace, ttl_s=5)

    def check_device(self, seq: Sequence, hashes: list[int]) -> None:
        for pos in range(seq.length):
            assert self.device[int(seq.table[pos // SIZE])][pos % SIZE] == hashes[pos], f"position {pos}"

    def check(self) -> None:
        self.store.check()
        copying = [d.entry for d in self.demotions] + [m.entry for m in self.moves]
        check_cold(self.index, list({entry for entry in copying if entry.dead}))
        stats = self.store.stats()
        total = stats.free_blocks + stats.active_blocks + stats.cached_blocks + stats.leaving_blocks
        assert total == stats.total_blocks
        for seq, hashes in self.open:
            self.check_device(seq, hashes)
        self.check_events()

    def check_events(self) -> None:
        """Who applies the events knows every full block of every tier, also one that starts late."""
        for event in self.announcer.take():
            for h in event.block_hashes:
                assert ((event.tier, h) in self.told) != isinstance(event, BlockStored)
                self.told ^= {(event.tier, h)}
            if isinstance(event, BlockStored):
                assert event.block_hashes == (block_hash(event.namespace, event.parent_hash, event.token_ids),)
        assert {(event.tier, *event.block_hashes) for event in self.announcer.snapshot()} == self.told
        present: set[tuple[str, int]] = set()
        assert self.store.demoter is not None
        for namespace in self.store.demoter.namespaces:
            for entry in self.index.of_scope(scope_of(namespace)):
                if len(entry.tokens) == SIZE * 4:
                    path = PathHash(entry.scope, entry.parent)
                    path.add(entry.tokens)
                    held = (tier.name for t, tier in enumerate(self.index.tiers) if entry.is_ready(t))
                    present |= {(name, path.block_hash) for name in held}
        assert present == self.told
        self.done["told"] += len(present)

    def run(self, steps: int) -> None:
        rules = [self.write, self.land, self.move_down, self.land_move, self.close, self.evict]
        rules += [self.flush, self.quota, self.lease, self.back_up]
        for _ in range(steps):
            self.now += 1
            self.random.choices(rules, weights=[6, 6, 3, 5, 6, 1, 1, 1, 1, 2])[0]()
            self.check()

    def end(self) -> None:
        """With everything closed and landed, every block comes free."""
        for seq, _ in self.open:
            self.store.close(seq)
        self.open.clear()
        self.store.evict(self.blocks)
        self.take()
        assert self.store.demoter is not None
        while self.demotions:
            self.store.demoter.done(self.demotions.pop(), ok=False)
        while self.moves:
            self.index.moved(self.moves.pop(), ok=False)
        self.check()
        assert self.store.free_blocks == self.blocks


def run_many(seeds: range, steps: int) -> Counter[str]:
    done: Counter[str] = Counter()
    for seed in seeds:
        model = ColdModel(seed)
        model.run(steps)
        model.end()
        done += model.done
    return done


def test_nothing_is_lost_and_nothing_is_wrong() -> None:
    done = run_many(range(60), 200)
    # It would prove nothing if hardly anything happened.
    assert (
        min(done["load", 0], done["load", 1], done["move", True], done["move", False], done["back up"], done["refused"])
        > 20
    )


@pytest.mark.nightly
def test_nothing_is_lost_and_nothing_is_wrong_at_length() -> None:
    run_many(range(1000, 3000), 300)
