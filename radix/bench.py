"""What the store costs: times of its operations by size, depth and policy, and bytes a token.

Everything runs in this process on one thread, on trees made up from a fixed seed. Times are medians over single
operations, so that what else the machine does shows in them as little as it can.
"""

from __future__ import annotations

import gc
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from radix.eviction import POLICIES
from radix.sequence import Sequence
from radix.store import PrefixStore
from radix.tokens import Ints

BLOCK_SIZE = 16
_VOCABULARY = 100_000
_LEAF_TOKENS = 2 * BLOCK_SIZE
# As the runtime keeps it: tokens of evicted prefixes beside each token of the pool.
_HISTORY_POOLS = 4


@dataclass(frozen=True, slots=True)
class Books:
    """What the store under test records beside its work.

    Attributes:
        full: changes for the metadata, KV events and the history behind verdicts, as the runtime has them; else none.
    """

    full: bool

    def store(self, blocks: int, policy: str = "lru") -> PrefixStore:
        if not self.full:
            return PrefixStore(blocks, BLOCK_SIZE, policy)
        history = _HISTORY_POOLS * blocks * BLOCK_SIZE
        return PrefixStore(blocks, BLOCK_SIZE, policy, track_changes=True, record_events=True, history_tokens=history)

    def empty(self, store: PrefixStore) -> None:
        """Take what was recorded, as the runtime does between two steps."""
        if self.full:
            store.changes()
            store.events()


class _Clock:
    """Times of operations by name, in µs."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._times.setdefault(name, []).append((time.perf_counter() - began) * 1e6)

    def medians(self) -> dict[str, float]:
        return {name: median(times) for name, times in self._times.items()}


def match_ns_per_token(books: Books, tokens: int = 120_000, repeats: int = 400) -> float:
    """Return ns a token to match a history that is one path."""
    path = _random(np.random.default_rng(1), tokens)
    store = books.store(tokens // BLOCK_SIZE + 8)
    _send(store, path)
    assert store.match(path) == tokens
    return _median_us(lambda: store.match(path), repeats) * 1e3 / tokens


def match_500_turns_us(books: Books, turns: int = 500, tokens: int = 32_000, repeats: int = 400) -> float:
    """Return µs to match a session that grew by a turn at a time."""
    path = _random(np.random.default_rng(2), tokens)
    store = books.store(tokens // BLOCK_SIZE + 8)
    for turn in range(1, turns + 1):
        _send(store, path[: turn * tokens // turns])
        books.empty(store)
    assert store.match(path) == tokens
    return _median_us(lambda: store.match(path), repeats)


def turn_us(books: Books, history: int = 100_000, added: int = 300, repeats: int = 200) -> dict[str, float]:
    """Return µs of a turn that adds to a long history, whole and by its parts, with a fork beside it.

    The history grows turn by turn, and has `history` tokens in the middle of the run.
    """
    rng = np.random.default_rng(3)
    path = _random(rng, history + repeats * added)
    store = books.store(len(path) // BLOCK_SIZE + 64)
    first = history - repeats * added // 2
    _send(store, path[:first])
    clock = _Clock()
    for end in range(first + added, first + (repeats + 1) * added, added):
        books.empty(store)
        prompt = path[:end]
        with clock.measure("turn"):
            with clock.measure("open"):
                seq = store.open(prompt)
            new = prompt[seq.length :]
            with clock.measure("reserve"):
                store.reserve(seq, len(new))
            with clock.measure("commit"):
                store.commit(seq, new)
            with clock.measure("close"):
                store.close(seq)
        seq = store.open(prompt)
        with clock.measure("fork"):
            child = store.fork(seq)
        store.close(child)
        store.close(seq)
    return clock.medians()


def operations_us(books: Books, history: int, branches: int, repeats: int = 200) -> dict[str, float]:
    """Return µs of each operation on a history with so many places where other histories branch off."""
    rng = np.random.default_rng(4)
    path = _random(rng, history)
    store = books.store(-(-(history + branches * 64) // BLOCK_SIZE) + branches + repeats * 24 + 64)
    _send(store, path)
    for at in np.linspace(1, history - 1, branches, dtype=int) if branches else ():
        _send(store, np.concatenate((path[: int(at)], _random(rng, 64))))
    clock = _Clock()
    for _ in range(repeats):
        books.empty(store)
        prompt = np.concatenate((path, _random(rng, 300)))
        with clock.measure("match"):
            store.match(prompt)
        with clock.measure("open"):
            seq = store.open(prompt)
        new = prompt[seq.length :]
        with clock.measure("reserve"):
            store.reserve(seq, len(new))
        with clock.measure("commit"):
            store.commit(seq, new)
        with clock.measure("fork"):
            child = store.fork(seq)
        with clock.measure("close"):
            store.close(seq)
        store.close(child)
    return clock.medians()


def evict_us(books: Books, leaves: int, policy: str, repeats: int = 400) -> float:
    """Return µs to evict one block of a tree with so many leaves on one trunk.

    Between two evictions a random leaf is used, so that the order changes all the time.
    """
    rng = np.random.default_rng(5)
    trunk = _random(rng, 4 * BLOCK_SIZE)
    tails = rng.integers(0, _VOCABULARY, (leaves, _LEAF_TOKENS), dtype=np.int32)
    tails[:, 0] = np.arange(leaves)
    store = books.store(4 + leaves * _LEAF_TOKENS // BLOCK_SIZE + 8, policy)
    for tail in tails:
        _send(store, np.concatenate((trunk, tail)), priority=int(tail[1]) % 4)
    clock = _Clock()
    for used in rng.integers(leaves // 2, leaves, min(repeats, leaves // 2)):
        store.close(store.open(np.concatenate((trunk, tails[used]))))
        books.empty(store)
        with clock.measure("evict"):
            freed = store.evict(1)
        assert freed == 1
    return clock.medians()["evict"]


def bytes_per_token(books: Books, tokens: int = 10_000_000) -> dict[str, float]:
    """Return bytes a token held by a store full of agent sessions, everything in it counted, and the tree's shape.

    Measured with tracemalloc, which sees Python's objects and NumPy's buffers: what is allocated after all sessions ran
    less what was before the store was made. The pool is as large as the tree needs. Sessions share a system prompt of
    8,000 tokens, begin with 20,000, grow by some 1,000 a turn to 60 turns, and at every tenth turn rewrite their last
    one, whose old branch stays.
    """
    rng = np.random.default_rng(6)
    system = _random(rng, 8_000)
    blocks = -(-tokens // BLOCK_SIZE) + tokens // 1000
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        store = books.store(blocks)
        while store.stats().cached_tokens < tokens:
            _session(store, books, rng, system, tokens)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    stats = store.stats()
    return {
        "bytes_per_token": used / stats.cached_tokens,
        "tokens": stats.cached_tokens,
        "nodes": stats.nodes,
        "blocks": stats.total_blocks,
    }


def _session(store: PrefixStore, books: Books, rng: np.random.Generator, system: Ints, tokens: int) -> None:
    path = np.concatenate((system, _random(rng, 12_000)))
    for turn in range(60):
        _send(store, path)
        books.empty(store)
        if store.stats().cached_tokens >= tokens:
            return
        if turn % 10 == 9:
            path = path[:-500]
        path = np.concatenate((path, _random(rng, int(rng.exponential(1000)) + 20)))


def machine() -> dict[str, Any]:
    """Return what ran this: processor, system, Python and NumPy."""
    return {
        "cpu": _cpu_model(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def run(
    leaves: Iterable[int],
    policies: Iterable[str] = tuple(POLICIES),
    *,
    full: bool = False,
    tree_tokens: int = 10_000_000,
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Measure everything once.

    Args:
        leaves: tree sizes for `evict_us`.
        full: with all books kept, as the runtime keeps them.
        tree_tokens: size of the tree for `bytes_per_token`.
        on_step: told what begins.
    """
    books = Books(full)
    on_step("match")
    result: dict[str, Any] = {
        "match_ns_per_token": match_ns_per_token(books),
        "match_500_turns_us": match_500_turns_us(books),
    }
    on_step("turn")
    parts = turn_us(books)
    result["turn_us"] = parts.pop("turn")
    result["turn_parts_us"] = parts
    result["operations_us"] = []
    for history in (1_000, 10_000, 100_000):
        for branches in (0, 10, 100):
            on_step(f"operations at {history:,} tokens, {branches} branch points")
            times = operations_us(books, history, branches)
            result["operations_us"].append({"history": history, "branches": branches, **times})
    result["evict_us"] = {}
    for policy in policies:
        for count in leaves:
            on_step(f"evict, {policy}, {count:,} leaves")
            result["evict_us"].setdefault(policy, {})[str(count)] = evict_us(books, count, policy)
    on_step("memory")
    memory = bytes_per_token(books, tree_tokens)
    result["bytes_per_token"] = memory.pop("bytes_per_token")
    result["memory"] = memory
    return result


def _random(rng: np.random.Generator, n: int) -> Ints:
    return rng.integers(0, _VOCABULARY, n, dtype=np.int32)


def _send(store: PrefixStore, prompt: Ints, priority: int = 0) -> None:
    seq: Sequence = store.open(prompt, priority=priority)
    store.reserve(seq, len(prompt) - seq.length)
    store.commit(seq, prompt[seq.length :])
    store.close(seq)


def _median_us(operation: Callable[[], object], repeats: int) -> float:
    clock = _Clock()
    for _ in range(repeats):
        with clock.measure("it"):
            operation()
    return clock.medians()["it"]
