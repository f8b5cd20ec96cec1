"""Back ends on random KV against a dense softmax in float64: shapes that a small model never reaches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from runtime.attention import AttentionOptions, cpu_decode, make_backend
from runtime.attention.cpu_decode import DecodeLayout
from runtime.errors import InvalidRequest
from runtime.execution.batch import BatchItem, StepPlan
from runtime.kv.kv_pool import KVPool, LayerKV
from runtime.kv.precision import LayerShape

KV_HEADS, GROUP, DIM = 2, 3, 16
HEADS = KV_HEADS * GROUP


def dense(
    query: torch.Tensor, kv: LayerKV, plan: StepPlan, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention written from its definition, one query at a time."""
    outs, lses = [], []
    for row in plan.rows:
        slots = [
            int(row.table[p // plan.block_size]) * plan.block_size + p % plan.block_size for p in range(row.kv_len)
        ]
        keys, values = kv.key_slots[slots].double(), kv.value_slots[slots].double()
        for i in range(row.q_len):
            position = row.start + i
            low = 0 if options.window is None else max(0, position - options.window + 1)
            q = query[row.q_start + i].double()
            k = keys[low : position + 1].repeat_interleave(GROUP, dim=1)
            v = values[low : position + 1].repeat_interleave(GROUP, dim=1)
            scores = torch.einsum("hd,khd->hk", q, k) * options.scale
            if options.softcap is not None:
                scores = options.softcap * torch.tanh(scores / options.softcap)
            if options.sinks is not None:
                scores = torch.cat([scores, options.sinks.double()[:, None]], dim=1)
            weights = torch.softmax(scores, dim=1)[:, : k.shape[0]]
            outs.append(torch.einsum("hk,khd->hd", weights, v))
            lses.append(torch.logsumexp(scores, dim=1))
    return torch.stack(outs).float(), torch.stack(lses).float()


class Step:
    """A pool of NaN in which exactly the slots of the given rows are written, and queries for their last tokens."""

    def __init__(self, rows: list[tuple[int, int, np.ndarray]], block_size: int, num_blocks: int) -> None:
        shape = LayerShape(0, KV_HEADS, DIM, DIM)
        # Block 0 belongs to nobody: an index that was left at zero reads NaN.
        self.pool = KVPool([shape], num_blocks + 1, block_size, dtype=torch.float32, device="cpu", fill=float("nan"))
        self.kv = self.pool.layers[0]
        items = [BatchItem(np.zeros(count, np.int32), start, table + 1) for start, count, table in rows]
        self.plan = StepPlan(items, block_size, num_blocks + 1, self.pool.device)
        generator = torch.Generator().manual_seed(5)
        for row in self.plan.rows:
            where = np.arange(row.kv_len)
            slots = torch.from_numpy(row.table[where // block_size].astype(np.int64) * block_size + where % block_size)
            self.kv.key_slots[slots] = torch.randn(len(slots), KV_HEADS, DIM, generator=generator)
            self.kv.value_slots[slots] = torch.randn(len(slots), KV_HEADS, DIM, generator=generator)
        self.query = torch.randn(self.plan.total, HEADS, DIM, generator=generator)

    def check(self, backend: str, options: AttentionOptions) -> None:
        out, lse = make_backend(backend)(self.query, self.kv, self.plan, options)
        wanted, wanted_lse = dense(self.query, self.kv, self.plan, options)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=2e-6)
        if options.want_lse:
            assert lse is not None
            torch.testing.assert_close(lse, wanted_lse, rtol=1e-5, atol=2e-6)


def few_tokens_of_each(block_size: int) -> Step:
    """Two, three and thirty-one tokens at once behind a common beginning; one alone; one from nothing."""
    per = max(1, 320 // block_size)
    pieces = scattered(6, 6 * per, 6 * per).reshape(6, per)
    rows = [np.concatenate([pieces[0], piece]) for piece in pieces[1:4]]
    counts = [(2, rows[0]), (3, rows[1]), (31, rows[2]), (1, pieces[4])]
    steps = [(len(t) * block_size - 9 - n, n, t) for n, t in counts]
    return Step([*steps, (0, 7, pieces[5])], block_size, 6 * per)


def chunks_on_a_trunk(block_size: int) -> Step:
    """Branches of a trunk, one of which has gone on by itself, and strangers."""
    per = max(1, 160 // block_size)
    pieces = scattered(7, 8 * per, 8 * per).reshape(8, per)
    trunk = per * block_size
    rows = [
        (trunk, 40, np.concatenate([pieces[0], pieces[1]])),
        (trunk, 150, np.concatenate([pieces[0], pieces[2]])),
        (trunk + 70, 33, np.concatenate([pieces[0], pieces[3]])),
        (trunk - 100, 90, pieces[4]),
        (100, 35, pieces[5]),
    ]
    return Step(rows, block_size, 8 * per)


def scattered(seed: int, count: int, total: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(total)[:count].astype(np.int32)


def decode_of_unequal_lengths(block_size: int) -> Step:
    lengths = [1, 2, block_size, block_size + 1, 300, 777, 1025]
    tables, used = [], 0
    total = sum(-(-length // block_size) for length in lengths)
    order = scattered(1, total, total)
    for length in lengths:
        blocks = -(-length // block_size)
        tables.append(order[used : used + blocks])
        used += blocks
    return Step([(n - 1, 1, t) for n, t in zip(lengths, tables, strict=True)], block_size, total)


def decode_in_place(block_size: int) -> Step:
    blocks = -(-600 // block_size)
    tables = [np.arange(i * blocks, (i + 1) * blocks, dtype=np.int32) for i in range(3)]
    return Step([(600 - 1 - 37 * i, 1, table) for i, table in enumerate(tables)], block_size, 3 * blocks)


def decode_over_shared_trunks(block_size: int) -> Step:
    """Two trunks; three branches on one, of which two share a limb; two on the other; one sequence alone."""
    per = max(1, 160 // block_size)
    pieces = scattered(3, 9 * per, 9 * per).reshape(9, per)
    a, limb, b = pieces[:3]
    tables = [
        np.concatenate([a, limb, pieces[3]]),
        np.concatenate([a, limb, pieces[4]]),
        np.concatenate([a, pieces[5]]),
        np.concatenate([b, pieces[6]]),
        np.concatenate([b, pieces[7]]),
        pieces[8],
        # Ends inside the trunk that others go on from.
        a,
    ]
    return Step([(len(t) * block_size - 1 - i % block_size, 1, t) for i, t in enumerate(tables)], block_size, 9 * per)


def chunks(block_size: int) -> Step:
    blocks = -(-500 // block_size)
    order = scattered(4, 5 * blocks, 5 * blocks).reshape(5, blocks)
    order[1] = np.sort(order[1])
    rows = [(0, 90, order[0]), (411, 33, order[1]), (200, 31, order[2]), (499, 1, order[3]), (1, 300, order[4])]
    return Step(rows, block_size, 5 * blocks)


STEPS = [
    decode_of_unequal_lengths,
    decode_in_place,
    decode_over_shared_trunks,
    few_tokens_of_each,
    chunks,
    chunks_on_a_trunk,
]
SINKS = torch.linspace(-2, 4, HEADS)
OPTIONS = {
    "plain": AttentionOptions(scale=0.3, want_lse=True),
    "window": AttentionOptions(scale=0.25, window=100, want_lse=True),
    "window-of-one": AttentionOptions(scale=0.25, window=1),
    "window-wider": AttentionOptions(scale=0.25, window=5000),
    "sinks": AttentionOptions(scale=0.25, sinks=SINKS, want_lse=True),
    "window-sinks": AttentionOptions(scale=0.25, window=130, sinks=SINKS),
    "softcap": AttentionOptions(scale=0.5, softcap=1.5, want_lse=True),
}


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode attention makes segments of what it would rather gather: small tables show every path."""
    monkeypatch.setattr(cpu_decode, "MIN_CALL", 150)
    monkeypatch.setattr(cpu_decode, "MIN_VIEW", 256)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "native"])
@pytest.mark.parametrize("block_size", [1, 16, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", STEPS)
def test_equals_the_definition(make: Callable[[int], Step], block_size: int, backend: str) -> None:
    step = make(block_size)
    for options in OPTIONS.values():
        step.check(backend, options)


@pytest.mark.parametrize("block_size", [1, 16, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", STEPS)
def test_short_segments_equal_it_too(make: Callable[[int], Step], block_size: int, short_segments: None) -> None:
    step = make(block_size)
    for options in OPTIONS.values():
        step.check("sdpa", options)


@pytest.mark.parametrize("name", OPTIONS)
def test_off_the_cpu_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of other devices, on this one."""
    monkeypatch.setattr("runtime.attention.cpu_kernel.supports", lambda *_: False)
    chunks(16).check("sdpa", OPTIONS[name])


def test_shared_blocks_are_read_once(short_segments: None) -> None:
    step = decode_over_shared_trunks(16)
    layout = DecodeLayout(step.plan, list(range(7)), None, torch.float32)
    sharing = sorted((segment.count, segment.tokens) for segment in layout.segments)
    # What one row has to itself is short, all but one row's that shares with none.
    assert sharing == [(1, 160), (2, 160), (2, 176), (4, 144)]


def test_neighbours_are_read_in_place(short_segments: None) -> None:
    step = decode_in_place(16)
    layout = DecodeLayout(step.plan, [0, 1, 2], None, torch.float32)
    assert [segment.blocks for segment in layout.segments] == [None] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_pools(dtype: torch.dtype) -> None:
    step = decode_over_shared_trunks(16)
    wanted, _ = dense(step.query, step.kv, step.plan, OPTIONS["plain"])
    half = KVPool([LayerShape(0, KV_HEADS, DIM, DIM)], step.pool.num_blocks, 16, dtype=dtype, device="cpu")
    half.layers[0].keys.copy_(step.kv.keys)
    half.layers[0].values.copy_(step.kv.values)
    out, _ = make_backend("sdpa")(step.query.to(dtype), half.layers[0], step.plan, OPTIONS["plain"])
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), wanted, rtol=3e-2, atol=3e-2)
    # A narrower pool under a float32 model is read in the model's precision.
    mixed, _ = make_backend("sdpa")(step.query, half.layers[0], step.plan, OPTIONS["plain"])
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, wanted, rtol=3e-2, atol=3e-2)


def test_unknown_back_end_is_named() -> None:
    with pytest.raises(InvalidRequest, match="attention is 'flashy': must be one of auto, fa3"):
        make_backend("flashy")
