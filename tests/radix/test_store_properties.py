"""The store against a model that keeps every prefix in a dict and every slot's content in a list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radix import (
    BlockStored,
    Cause,
    LeaseRefused,
    Namespace,
    OutOfBlocks,
    PrefixStore,
    Sequence,
    block_hash,
)
from radix.eviction import POLICIES

NAMESPACES = [Namespace("w"), Namespace("w", salt="x"), Namespace("w", adapter="x")]


def public_of(namespace: Namespace) -> Namespace:
    return Namespace(namespace.fingerprint, adapter=namespace.adapter)


def prefix_hashes(tokens: list[int], salt: object) -> list[int]:
    """One hash a position, over all tokens up to it: what the KV of that position depends on."""
    hashes, state = [], hash(salt)
    for token in tokens:
        state = hash((state, token))
        hashes.append(state)
    return hashes


class Model:
    """An open sequence as the model sees it."""

    def __init__(self, seq: Sequence, tokens: list[int], public: int) -> None:
        self.seq = seq
        self.tokens = tokens
        self.public = public


class StoreMachine(RuleBasedStateMachine):
    block_size = 4

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.blocks = data.draw(st.integers(1, 14), label="blocks")
        self.now = 0.0
        self.store = PrefixStore(
            self.blocks,
            self.block_size,
            clock=self.tick,
            track_changes=True,
            record_events=True,
            history_tokens=10**6,
            eviction=data.draw(st.sampled_from(sorted(POLICIES)), label="eviction"),
        )
        self.slots: list[list[int | None]] = [[None] * self.block_size for _ in range(self.blocks)]
        # Hashes of every prefix that is cached, and of every prefix that ever was since its namespace was flushed.
        self.known: dict[int, None] = {}
        self.ever: dict[int, Namespace] = {}
        self.routed: dict[int, int | None] = {}
        self.leases: list[int] = []
        self.open: list[Model] = []
        self.mirror: dict[int, object] = {}

    def tick(self) -> float:
        self.now += 1
        return self.now

    def tokens(self, data: st.DataObject) -> list[int]:
        """Few distinct tokens and lengths near block boundaries: most prompts share something with an earlier one."""
        base = data.draw(st.sampled_from([m.tokens for m in self.open] or [[]]), label="base")
        cut = data.draw(st.integers(0, len(base)), label="cut")
        near = [0, 1, self.block_size - 1, self.block_size, self.block_size + 1, 2 * self.block_size + 1]
        extra = data.draw(st.sampled_from(near), label="extra")
        fill = data.draw(st.integers(0, 2), label="fill")
        ends = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3), label="ends")
        return base[:cut] + [fill] * extra + ends

    def longest_known(self, tokens: list[int], namespace: Namespace) -> int:
        length = 0
        for i, h in enumerate(prefix_hashes(tokens, namespace)):
            if h in self.known:
                length = i + 1
        return length

    @rule(
        data=st.data(),
        namespace=st.sampled_from(NAMESPACES),
        published=st.booleans() | st.just(True),
        public=st.sampled_from([0, 0, 1, 5, 100]),
        priority=st.integers(0, 2),
    )
    def open_sequence(
        self, data: st.DataObject, namespace: Namespace, published: bool, public: int, priority: int
    ) -> None:
        tokens = self.tokens(data)
        expected = self.longest_known(tokens, namespace)
        if namespace.salt is not None:
            expected = max(expected, self.longest_known(tokens[:public], public_of(namespace)))
        before = list(map(str, self.store.nodes()))
        assert self.store.match(tokens, namespace, public) == expected
        assert list(map(str, self.store.nodes())) == before, "a lookup changed the tree"
        seq = self.store.open(tokens, namespace, publish=published, public_tokens=public, priority=priority)
        assert seq.length == seq.matched == (min(expected, len(tokens) - 1) if published else 0)
        self.open.append(Model(seq, tokens, public if namespace.salt is not None else 0))
        self.learn(self.open[-1])

    def learn(self, model: Model) -> None:
        """What is committed is known, to each tree that the sequence publishes to."""
        seq = model.seq
        if seq.cursor.node is not None:
            for h in prefix_hashes(model.tokens[: seq.length], seq.namespace):
                self.known[h] = None
                self.ever[h] = seq.namespace
        if seq.public_cursor.node is not None:
            shared = model.tokens[: min(seq.length, model.public)]
            self.known.update(dict.fromkeys(prefix_hashes(shared, public_of(seq.namespace))))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        """Reserve, carry out the copies, write, and commit a part of what was written."""
        model = data.draw(st.sampled_from(self.open), label="sequence")
        seq = model.seq
        n = data.draw(st.sampled_from([1, 2, self.block_size, 2 * self.block_size]), label="n")
        missing = seq.length + n - len(model.tokens)
        if missing > 0:
            model.tokens = model.tokens + data.draw(st.lists(st.integers(0, 2), min_size=missing, max_size=missing))
        before = (list(map(str, self.store.nodes())), self.store.stats(), seq.table.tolist())
        try:
            copies = self.store.reserve(seq, n)
        except OutOfBlocks:
            assert before == (list(map(str, self.store.nodes())), self.store.stats(), seq.table.tolist())
            self.check_refusal_was_due(seq, n)
            return
        self.forget_what_was_evicted()
        assert seq.capacity >= seq.length + n
        for copy in copies:
            self.slots[copy.dst][: copy.tokens] = self.slots[copy.src][: copy.tokens]
        hashes = prefix_hashes(model.tokens, public_of(seq.namespace))
        holders = [m for m in self.open if m is not model]
        for pos in range(seq.length, seq.length + n):
            block, slot = divmod(pos, self.block_size)
            written = int(seq.table[block])
            for other in holders:
                at = np.flatnonzero(other.seq.table == written)
                reads = len(at) and int(at[0]) * self.block_size + slot < other.seq.length
                assert not reads, "a slot that another sequence reads was written"
            self.slots[written][slot] = hashes[pos]
        done = data.draw(st.integers(0, n), label="commit")
        output = data.draw(st.booleans(), label="output")
        self.store.commit(seq, model.tokens[seq.length : seq.length + done], output=output)
        self.learn(model)

    def check_refusal_was_due(self, seq: Sequence, n: int) -> None:
        """Evict all that can go: the reservation must still not fit."""
        self.store.evict(self.blocks)
        self.forget_what_was_evicted()
        needed = -(-(seq.length + n) // self.block_size) - len(seq.table) + seq.reads_partial_block
        assert self.store.stats().free_blocks < needed, "refused although eviction would have made room"

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.open), label="sequence")
        child = self.store.fork(model.seq)
        assert child.length == model.seq.length
        self.open.append(Model(child, [*model.tokens[: child.length], 0], model.public))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def drop_partial(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.open), label="sequence")
        length = model.seq.length
        given_up = self.store.drop_partial(model.seq)
        assert given_up in (0, length % self.block_size)
        assert model.seq.length == length - given_up

    @precondition(lambda self: self.open)
    @rule(data=st.data(), twice=st.booleans())
    def close(self, data: st.DataObject, twice: bool) -> None:
        model = self.open.pop(data.draw(st.integers(0, len(self.open) - 1), label="index"))
        self.store.close(model.seq)
        if twice:
            self.store.close(model.seq)

    @rule(n=st.integers(1, 6))
    def evict(self, n: int) -> None:
        free = self.store.stats().free_blocks
        freed = self.store.evict(n)
        assert freed <= n, "more was evicted than was asked for"
        assert self.store.stats().free_blocks == free + freed
        self.forget_what_was_evicted()

    @rule(namespace=st.sampled_from([None, *NAMESPACES]))
    def flush(self, namespace: Namespace | None) -> None:
        self.store.flush(namespace)
        self.forget_what_was_evicted()
        gone = NAMESPACES if namespace is None else [namespace]
        self.ever = {h: name for h, name in self.ever.items() if name not in gone}
        for name in gone:
            assert not list(self.store.nodes(name))

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), ttl=st.integers(1, 60), priority=st.integers(0, 3))
    def lease(self, data: st.DataObject, namespace: Namespace, ttl: int, priority: int) -> None:
        tokens = self.tokens(data)
        before = self.store.stats()
        retention = self.store.retention
        try:
            lease, covered = retention.lease(tokens, namespace, ttl_s=ttl, priority=priority)
        except LeaseRefused as refused:
            # Looking may have ended leases whose time had come, and nothing else.
            assert self.store.stats().leased_tokens <= before.leased_tokens
            if refused.leased_tokens + refused.wanted_tokens <= retention.cap_tokens:
                raise AssertionError("a lease was refused that the cap had room for") from refused
            return
        assert covered == self.longest_known(tokens, namespace)
        assert self.store.stats().leased_tokens <= retention.cap_tokens
        self.leases.append(lease.id)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), again=st.booleans())
    def end_lease(self, data: st.DataObject, again: bool) -> None:
        lease_id = data.draw(st.sampled_from(self.leases), label="lease")
        live = {lease.id: lease.expires for lease in self.store.retention.leases}
        if live.get(lease_id, 0) <= self.now + 1:
            return
        if again:
            self.store.retention.renew(lease_id, 10)
        else:
            self.store.retention.release(lease_id)
            self.leases.remove(lease_id)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), keep=st.integers(0, 9))
    def supersede(self, data: st.DataObject, namespace: Namespace, keep: int) -> None:
        tokens = self.tokens(data)
        marked = self.store.retention.supersede(tokens, namespace, keep)
        assert 0 <= marked <= max(0, self.longest_known(tokens, namespace) - keep)

    @rule(namespace=st.sampled_from(NAMESPACES), share=st.sampled_from([None, 0.2, 0.5, 1.0]))
    def set_quota(self, namespace: Namespace, share: float | None) -> None:
        self.store.retention.set_quota(namespace, share)
        assert (namespace in self.store.retention.quotas) == (share is not None)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def explain(self, data: st.DataObject, namespace: Namespace) -> None:
        """The verdict of a prompt against one that is read off the model, position by position."""
        tokens = self.tokens(data)
        verdict = self.store.explain(tokens, namespace)
        said = [span.cause for span in verdict.spans for _ in range(span.end - span.start)]
        hashes = prefix_hashes(tokens, namespace)
        elsewhere = [prefix_hashes(tokens, name) for name in NAMESPACES if name != namespace]
        stored = sum(h in self.ever for h in hashes)
        branched = any(
            h in self.ever for token in range(3) for h in prefix_hashes([*tokens[:stored], token], namespace)[stored:]
        )
        expected = []
        for i, h in enumerate(hashes):
            if h in self.known:
                expected.append(Cause.CACHED if i < len(tokens) - 1 else Cause.LAST_TOKEN)
            elif h in self.ever:
                expected.append(Cause.EVICTED)
            elif any(other[i] in self.known for other in elsewhere):
                expected.append(Cause.OTHER_NAMESPACE)
            elif branched and stored and not any(other[stored] in self.known for other in elsewhere):
                expected.append(Cause.DIVERGED)
            else:
                expected.append(Cause.NEVER_SEEN)
        assert [Cause.EVICTED if cause is Cause.LEASE_EXPIRED else cause for cause in said] == expected
        for span in verdict.spans:
            if span.cause in (Cause.EVICTED, Cause.LEASE_EXPIRED):
                assert span.at is None or 0 < span.at <= self.now

    def forget_what_was_evicted(self) -> None:
        """Keep of the model what the tree still spells out, read from its nodes and not through match."""
        present: dict[int, None] = {}
        for namespace in NAMESPACES:
            ends: dict[int, list[int]] = {0: []}
            for node in self.store.nodes(namespace, head_tokens=10**6):
                ends[node.id] = ends[node.parent_id] + node.head.tolist()
                present.update(dict.fromkeys(prefix_hashes(ends[node.id], namespace)))
        assert all(h in self.known for h in present), "the tree holds what was never committed"
        self.known = present

    @invariant()
    def holds(self) -> None:
        self.store.check()
        stats = self.store.stats()
        assert stats.free_blocks + stats.active_blocks + stats.cached_blocks == stats.total_blocks == self.blocks
        for model in self.open:
            seq = model.seq
            hashes = prefix_hashes(model.tokens[: seq.length], public_of(seq.namespace))
            found = [self.slots[int(seq.table[p // self.block_size])][p % self.block_size] for p in range(seq.length)]
            assert found == hashes, "a block table points at slots that hold something else"
            if seq.cursor.node is not None:
                assert self.store.match(model.tokens[: seq.length], seq.namespace) == seq.length, (
                    "a live prefix was lost"
                )

    @invariant()
    def changes_rebuild_the_tree(self) -> None:
        upserted, removed = self.store.changes()
        for node in upserted:
            self.mirror[node.id] = str(node)
        for node_id in removed:
            self.mirror.pop(node_id, None)
        assert self.mirror == {node.id: str(node) for node in self.store.nodes()}

    @invariant()
    def events_rebuild_the_tree(self) -> None:
        """A consumer that applies the events holds exactly the full blocks of the tree, also one that starts late."""
        for event in self.store.events():
            if isinstance(event, BlockStored):
                parent = event.parent_hash
                assert parent is None or parent in self.routed, "a block was stored under one that is not there"
                for i, h in enumerate(event.block_hashes):
                    block = event.token_ids[i * self.block_size : (i + 1) * self.block_size]
                    assert h == block_hash(event.namespace, parent, block)
                    assert h not in self.routed, "a block was stored twice"
                    self.routed[h] = parent
                    parent = h
            else:
                for h in event.block_hashes:
                    assert h not in self.routed.values(), "a block was removed before those that follow it"
                    del self.routed[h]
        present: dict[int, int | None] = {}
        for namespace in NAMESPACES:
            paths: dict[int, list[int]] = {0: []}
            for node in self.store.nodes(namespace, head_tokens=10**6):
                paths[node.id] = path = paths[node.parent_id] + node.head.tolist()
                parent = None
                for end in range(self.block_size, len(path) + 1, self.block_size):
                    h = block_hash(namespace, parent, np.array(path[end - self.block_size : end], dtype=np.int32))
                    present[h], parent = parent, h
        assert self.routed == present
        late = {h for event in self.store.event_snapshot() for h in event.block_hashes}
        assert late == set(present)

    def teardown(self) -> None:
        for model in getattr(self, "open", []):
            self.store.close(model.seq)
        if hasattr(self, "store"):
            self.store.check()
            assert self.store.stats().active_blocks == 0
            self.store.flush()
            assert self.store.stats().free_blocks == self.blocks


@pytest.mark.parametrize("block_size", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 16, 256))])
def test_store_equals_the_model(block_size: int) -> None:
    machine = type("Machine", (StoreMachine,), {"block_size": block_size})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60 if block_size < 256 else 15,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
