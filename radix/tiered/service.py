"""Serves the calls of a trace from a store with a cold index, as the runtime does, with copies that take no time here.

What eviction takes from the device goes to the first tier and from there to the second; what a call finds there comes
back where that is cheaper than computing it.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from radix.cold import ColdIndex, ColdTier
from radix.cold.choice import cheapest
from radix.errors import OutOfBlocks
from radix.namespace import Namespace
from radix.sequence import Sequence
from radix.simulate import END
from radix.store import PrefixStore
from radix.tiered.layout import Layout
from radix.trace_formats import Call, Trace


class TieredService:
    """A store, the tiers behind its device, and what was found in each.

    Attributes:
        found_tokens: by tier, the device's among them.
        declined_tokens: that lay in a tier and were cheaper to compute.
        fetch_seconds: that copies to the device took, together.
        blocks: by tier, the device's among them.

    Raises:
        InvalidArgument: a tier that holds no block, or an unknown policy.
    """

    def __init__(self, trace: Trace, layout: Layout, block_size: int, policy: str) -> None:
        self.blocks = {name: layout.blocks(name, block_size) for name in layout.sizes}
        behind = [name for name in layout.sizes if name != "device"]
        tiers = [ColdTier(name, self.blocks[name], keeps_promoted=name == "disk") for name in behind]
        size = block_size if trace.has_tokens else 1
        self.index = ColdIndex(size, tiers, clock=lambda: 0.0)
        self.store = PrefixStore(
            self.blocks["device"],
            size,
            eviction=policy,
            clock=count().__next__,
            cold=self.index,
            copies_take_time=False,
        )
        self._has_tokens = trace.has_tokens
        bytes_per_block = layout.bytes_per_token * block_size
        self._seconds_a_block = [bytes_per_block / layout.bandwidth[name] for name in behind]
        self._seconds_a_token = 1 / layout.prefill_rate
        self.found_tokens = dict.fromkeys(layout.sizes, 0)
        self.declined_tokens = 0
        self.fetch_seconds = 0.0

    def serve(self, store: PrefixStore, call: Call, namespace: Namespace, unit: int) -> tuple[int, bool]:
        """Serve a call; return the cached tokens of all tiers and whether the call fits the device."""
        outputs = self._has_tokens and len(call.output) > 1
        whole = np.concatenate((call.path, call.output[:-1])) if outputs else call.path
        kept = whole[: store.num_blocks * store.block_size]
        prompt = kept[: len(call.path)] if self._has_tokens else np.concatenate((kept, END))
        seq = store.open(prompt, namespace)
        # What is about to be fetched must not be what makes way. The deepest goes first, as always.
        for hit in reversed(self.index.lookup(prompt[:-1], namespace, seq.length)):
            self.index.touch(hit.entry)
        self._reserve(store, seq, len(kept))
        most = call.input_tokens - 1
        found = min(seq.length * unit, most)
        self.found_tokens["device"] += found
        for tier, end in self._fetch(prompt, namespace, seq, unit):
            more = min(end * unit, most) - found
            self.found_tokens[self.index.tiers[tier].name] += more
            found += more
        store.commit(seq, kept[seq.length :])
        store.close(seq)
        return found, len(kept) == len(whole)

    def _reserve(self, store: PrefixStore, seq: Sequence, end: int) -> None:
        """Make room up to position `end`, and let go down what has to."""
        need = -(-(end - seq.length) // store.block_size) + 1
        short = need - store.free_blocks
        if self.index.second >= 0 and short > 0:
            for move in self.index.spill(short):
                self.index.moved(move)
        try:
            store.reserve(seq, end - seq.length)
        except OutOfBlocks:
            # A match that ends inside a block holds that block and needs a second one to copy it to.
            store.drop_partial(seq)
            store.reserve(seq, end - seq.length)
        assert store.demoter is not None
        for demotion in store.demoter.take():
            store.demoter.done(demotion)

    def _fetch(self, prompt: np.ndarray, namespace: Namespace, seq: Sequence, unit: int) -> list[tuple[int, int]]:
        """Bring back what is worth it; return the tier of each block and the position up to which it serves."""
        size, have = self.index.block_size, seq.length
        hits = self.index.lookup(prompt[:-1], namespace, have)
        if not hits:
            return []
        ends = [hit.index * size + hit.tokens for hit in hits]
        starts = [have, *ends[:-1]]
        costs = [(hit.entry.fastest, (end - at) * unit) for hit, at, end in zip(hits, starts, ends, strict=True)]
        n, seconds, _ = cheapest(costs, self._seconds_a_block, self._seconds_a_token)
        self.declined_tokens += (ends[-1] - starts[n]) * unit if n < len(hits) else 0
        self.fetch_seconds += seconds if n else 0.0
        for hit in hits[n:]:
            self.index.touch(hit.entry)
        fetched = []
        for hit, end in zip(hits[:n], ends, strict=False):
            tier = self.index.begin_load(hit.entry)
            self.index.loaded(hit.entry, tier, ok=True, whole=hit.tokens * 4 == len(hit.entry.tokens))
            fetched.append((tier, end))
        return fetched
