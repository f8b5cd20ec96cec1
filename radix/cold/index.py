"""The cold index: blocks that left the device, found by content, in tiers each slower and larger than the one before.

It decides and says what to copy; whoever carries that out tells it when a copy has landed. It is exclusive of the
device: a block that is promoted leaves memory, and stays on disk only as a spare. So capacities add.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from radix.cold.digests import TOKEN_BYTES, PathHash, scope_of, token_bytes
from radix.cold.entry import Entry
from radix.cold.siblings import add, beginnings, extensions, most_alike, remove
from radix.cold.tier import ColdTier
from radix.namespace import Namespace
from radix.tokens import Ints


@dataclass(frozen=True, slots=True)
class Hit:
    """A block that would serve positions `index * block_size` .. of a prompt, its first `tokens` tokens."""

    entry: Entry
    index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy an entry from its slot in tier `source` to its slot in tier `target`; then call `moved`.

    leaves: the source gives it up then.
    """

    entry: Entry
    source: int
    target: int
    leaves: bool


class ColdIndex:
    """Entries by what comes before them.

    Not thread-safe: the store's thread owns it.

    Args:
        block_size: token slots a block.
        tiers: the fastest first.
        clock: the store's.
    """

    def __init__(self, block_size: int, tiers: Sequence[ColdTier], clock: Callable[[], float] = time.monotonic) -> None:
        self.block_size = block_size
        self.tiers = tuple(tiers)
        self._clock = clock
        self._block_bytes = block_size * TOKEN_BYTES
        # By the digest before them, each list in the order of `radix.cold.siblings`.
        self._children: dict[bytes, list[Entry]] = {}
        self._scopes: dict[bytes, dict[Entry, None]] = {}
        # What only the first tier holds, in the order in which it came there.
        self._unsaved: OrderedDict[Entry, None] = OrderedDict()
        # Entries that leave the first tier once their copy in the second has landed.
        self._leaving = 0
        # Where blocks from the device go, and where they go from there.
        self.first = self.second = -1
        self._choose_targets()
        self.entries = 0
        # Told of each entry that a tier has from now on, or has no more.
        self.watcher: Callable[[Entry, int], None] | None = None
        # Scopes that were flushed, None for all, since whoever keeps records of them asked last.
        self._flushed: list[bytes | None] = []

    def _choose_targets(self) -> None:
        writable = [t for t, tier in enumerate(self.tiers) if tier.writable and not tier.retired]
        self.first = writable[0] if writable else -1
        self.second = writable[1] if len(writable) > 1 else -1

    # Finding

    def lookup(self, tokens: Ints, namespace: Namespace, start: int) -> list[Hit]:
        """Return the blocks that go on from the first `start` tokens, in order and without a hole. Changes nothing.

        Args:
            tokens: int32[n], as far as they may be reused.
            start: what the device has of them.
        """
        scope = scope_of(namespace)
        hits: list[Hit] = []
        if scope not in self._scopes or start >= len(tokens):
            return hits
        raw = token_bytes(tokens)
        path = PathHash(scope)
        index = start // self.block_size
        at = index * self._block_bytes
        parent = path.skip(raw[:at], self._block_bytes)
        while at < len(raw):
            window = raw[at : at + self._block_bytes]
            entry, shared = most_alike(self._children.get(parent, []), window)
            if entry is None or index * self.block_size + shared <= start:
                break
            hits.append(Hit(entry, index, shared))
            if shared < self.block_size:
                break
            index, at = index + 1, at + self._block_bytes
            parent = path.add(window)
        return hits

    def held(self, parent: bytes, tokens: bytes, tier: int) -> Entry | None:
        """Return the entry by which a tier has these tokens, or is about to; None where it does not."""
        longer = extensions(self._children.get(parent, []), tokens)
        return next((entry for entry in longer if entry.slots[tier] >= 0), None)

    # Coming

    def store(
        self,
        parent: bytes,
        scope: bytes,
        tokens: bytes,
        *,
        tier: int,
        spare: bool = False,
        keep_until: float = 0.0,
    ) -> Entry | None:
        """Take a block from the device into a tier.

        Args:
            spare: the device keeps it too.

        Returns:
            The entry whose slot in `tier` is to be written, then `landed`; None where nothing is to be copied: it is
            there, or there is no room.
        """
        siblings = self._children.get(parent, [])
        same: Entry | None = None
        for entry in extensions(siblings, tokens):
            if entry.slots[tier] >= 0 or len(entry.tokens) > len(tokens):
                if not spare:
                    self._device_lost(entry, keep_until)
                return None
            same = entry
        shorter = beginnings(siblings, tokens)
        if not self._has_room(tier, scope, may_evict=not spare or self.tiers[tier].wants_spares, spare=spare):
            if same is not None and not spare:
                self._device_lost(same, keep_until)
            return None
        if same is None:
            same = self._new(parent, scope, tokens)
        same.keep_until = max(same.keep_until, keep_until)
        for entry in shorter:
            self.forget(entry)
        if spare:
            self.tiers[tier].coming.add(same)
        else:
            self._no_spare(same)
        same.slots[tier] = self.tiers[tier].take(scope)
        same.busy[tier] += 1
        return same

    def _no_spare(self, entry: Entry) -> None:
        """Copies that are under way are no spares of the device's any more."""
        for tier in self.tiers:
            tier.coming.discard(entry)

    def _device_lost(self, entry: Entry, keep_until: float) -> None:
        """What was a spare of the device's own is not any more; it was used as lately as what leaves the device."""
        entry.keep_until = max(entry.keep_until, keep_until)
        self._no_spare(entry)
        for t, tier in enumerate(self.tiers):
            if entry.is_ready(t):
                tier.queue(entry, spare=False)
                break

    def _new(self, parent: bytes, scope: bytes, tokens: bytes) -> Entry:
        entry = Entry(parent, scope, tokens, len(self.tiers))
        add(self._children.setdefault(parent, []), entry)
        self._scopes.setdefault(scope, {})[entry] = None
        self.entries += 1
        return entry

    def restore(self, parent: bytes, scope: bytes, tokens: bytes, tier: int, slot: int) -> Entry:
        """Take in what a tier's slot holds from before. The least recently used first; before anything is stored."""
        longer = extensions(self._children.get(parent, []), tokens)
        same = next((e for e in longer if e.tokens == tokens and e.slots[tier] < 0), None)
        entry = same if same is not None else self._new(parent, scope, tokens)
        self.tiers[tier].take_known(slot, scope)
        entry.slots[tier] = slot
        entry.ready |= 1 << tier
        self.tiers[tier].queue(entry, spare=entry.fastest < tier)
        self._changed(entry, tier)
        return entry

    def landed(self, entry: Entry, tier: int, *, ok: bool = True, spare: bool = False, first: bool = False) -> None:
        """A copy into an entry's slot ended.

        Args:
            first: nobody is going to miss it.
            spare: the device had it too when the copy was asked for, or a nearer tier has it.
        """
        at = self.tiers[tier]
        spare = spare and (entry in at.coming or 0 <= entry.fastest < tier)
        at.coming.discard(entry)
        entry.busy[tier] -= 1
        if entry.dead or not ok or at.retired:
            self._drop(entry, tier)
            return
        entry.ready |= 1 << tier
        self._changed(entry, tier)
        at.queue(entry, spare=spare, first=first)
        for t in range(tier + 1, len(self.tiers)):
            if entry.is_ready(t):
                self.tiers[t].queue(entry, spare=True)
        if tier == self.first and self.second >= 0 and entry.slots[self.second] < 0:
            self._unsaved[entry] = None

    # Moving down

    def spill(self, want: int) -> Iterator[Move]:
        """Give up slots of the first tier until `want` are free or on their way: yield what to copy down first."""
        tier = self.tiers[self.first]
        goal = min(want, tier.capacity)
        while tier.free + self._leaving < goal:
            entry = tier.victim(self.first, self._clock())
            if entry is None:
                return
            # Or about to be: the device's own copy to there is under way.
            elsewhere = entry.ready != 1 << self.first or entry.slots[self.second] >= 0
            if self.second < 0 or elsewhere or not self._has_room(self.second, entry.scope, may_evict=True):
                self._evict(entry, self.first)
                continue
            tier.unqueue(entry)
            self._leaving += 1
            yield self._begin_move(entry, leaves=True)

    def save(self, limit: int) -> Iterator[Move]:
        """Yield copies of what only the first tier holds, as far as the second has free slots."""
        while limit > 0 and self._unsaved and self.tiers[self.second].free:
            entry, _ = self._unsaved.popitem(last=False)
            wanted = entry.is_ready(self.first) and entry.slots[self.second] < 0
            if wanted and self._has_room(self.second, entry.scope, may_evict=False):
                limit -= 1
                yield self._begin_move(entry, leaves=False)

    def _begin_move(self, entry: Entry, *, leaves: bool) -> Move:
        self._unsaved.pop(entry, None)
        entry.slots[self.second] = self.tiers[self.second].take(entry.scope)
        entry.busy[self.first] += 1
        entry.busy[self.second] += 1
        return Move(entry, self.first, self.second, leaves)

    def moved(self, move: Move, *, ok: bool = True) -> None:
        """A copy down ended."""
        entry = move.entry
        entry.busy[move.source] -= 1
        self._leaving -= move.leaves
        self.landed(entry, move.target, ok=ok, spare=not move.leaves)
        if move.leaves or entry.dead or not entry.is_ready(move.source):
            self._drop(entry, move.source)

    # Going back to the device

    def begin_load(self, entry: Entry) -> int:
        """Read an entry from its fastest tier, whose number is returned; it stays until `loaded`."""
        tier = entry.fastest
        entry.busy[tier] += 1
        return tier

    def loaded(self, entry: Entry, tier: int, *, ok: bool, whole: bool) -> None:
        """A read ended. `whole`: the device has all of the entry's tokens from now on. Not `ok`: it was no good."""
        entry.busy[tier] -= 1
        if entry.dead or not ok or not entry.is_ready(tier):
            self._drop(entry, tier)
        elif whole:
            for t in range(len(self.tiers)):
                if not entry.is_ready(t) or entry.busy[t]:
                    continue
                if self.tiers[t].keeps_promoted:
                    self.tiers[t].queue(entry, spare=True)
                else:
                    self._drop(entry, t)
        else:
            self.tiers[tier].queue(entry, spare=False)

    def touch(self, entry: Entry) -> None:
        """An entry would have been used, had it been worth it."""
        tier = self.tiers[entry.fastest]
        if entry in tier.primary:
            tier.queue(entry, spare=False)

    # Going

    def forget(self, entry: Entry) -> None:
        """Let nobody find an entry any more."""
        if entry.dead:
            return
        self._unlink(entry)
        for tier in range(len(self.tiers)):
            if entry.slots[tier] >= 0:
                self._drop(entry, tier)

    def flush(self, namespace: Namespace | None = None) -> int:
        """Forget a namespace, or everything; return how many entries that were."""
        scopes = list(self._scopes) if namespace is None else [scope_of(namespace)]
        gone = [entry for scope in scopes for entry in self._scopes.get(scope, ())]
        for entry in gone:
            self.forget(entry)
        self._flushed.append(None if namespace is None else scopes[0])
        return len(gone)

    def take_flushed(self) -> list[bytes | None]:
        """Return the scopes that were flushed since the last call, None for all: files may hold more of them."""
        out, self._flushed = self._flushed, []
        return out

    def retire(self, tier: int) -> None:
        """Use a tier no more: what it holds is forgotten, and what goes down passes it by."""
        at = self.tiers[tier]
        at.retired = True
        self._choose_targets()
        for entry in [*at.primary, *at.spare]:
            self._evict(entry, tier)

    def set_quota(self, namespace: Namespace, share: float | None) -> None:
        """Let a namespace take at most this share of each tier; None lifts the limit."""
        for tier in self.tiers:
            tier.limit(scope_of(namespace), None if share is None else max(1, int(share * tier.capacity)))

    def _has_room(self, tier: int, scope: bytes, *, may_evict: bool, spare: bool = False) -> bool:
        at = self.tiers[tier]
        own = at.full_for(scope)
        if at.free and not own:
            return True
        victim = at.victim(tier, self._clock(), scope if own else None) if may_evict else None
        # One spare in place of another would be written for nothing.
        if victim is None or (spare and (victim in at.spare or victim.keep_until > self._clock())):
            return False
        self._evict(victim, tier)
        return True

    def _evict(self, entry: Entry, tier: int) -> None:
        at = self.tiers[tier]
        # What is spare and in no other tier the device has.
        spare = entry in at.spare
        self._drop(entry, tier)
        at.lost += entry.dead and not spare

    def _drop(self, entry: Entry, tier: int) -> None:
        at = self.tiers[tier]
        at.unqueue(entry)
        if entry.is_ready(tier):
            entry.ready &= ~(1 << tier)
            self._changed(entry, tier)
        if entry.busy[tier]:
            # Whoever copies it now comes by here again.
            return
        if entry.slots[tier] >= 0:
            at.give_back(entry.slots[tier], entry.scope)
            entry.slots[tier] = -1
        if tier == self.first:
            self._unsaved.pop(entry, None)
        if entry.nowhere:
            if not entry.dead:
                self._unlink(entry)
        elif not entry.dead and entry.ready:
            fastest = entry.fastest
            if fastest > tier and entry in self.tiers[fastest].spare:
                self.tiers[fastest].queue(entry, spare=False)

    def _unlink(self, entry: Entry) -> None:
        entry.dead = True
        self.entries -= 1
        siblings = self._children[entry.parent]
        remove(siblings, entry)
        if not siblings:
            del self._children[entry.parent]
        own = self._scopes[entry.scope]
        del own[entry]
        if not own:
            del self._scopes[entry.scope]

    def _changed(self, entry: Entry, tier: int) -> None:
        if self.watcher is not None:
            self.watcher(entry, tier)

    # Inspecting

    def of_scope(self, scope: bytes) -> Collection[Entry]:
        """Return the entries of a namespace."""
        return self._scopes.get(scope, {}).keys()

    def all(self) -> Iterator[Entry]:
        """Yield every entry."""
        for own in self._scopes.values():
            yield from own

    def tokens_in(self, tier: int) -> int:
        """Return how many tokens a tier holds for use; O(entries)."""
        return sum(len(entry.tokens) // TOKEN_BYTES for entry in self.all() if entry.is_ready(tier))
