"""Shared beginnings attended once, over a kernel in plain steps and over a stand-in for a GPU library."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from runtime.attention.interface import AttentionOptions
from runtime.attention.reference import ReferenceAttention
from runtime.attention.shared_prefix import SharedPrefixAttention, find_shared
from runtime.execution.batch import BatchItem, StepPlan
from runtime.kv.kv_pool import KVPool, LayerKV
from runtime.kv.precision import LayerShape
from tests.runtime.attention_libraries import PagedReference, flash_attn_3

SIZE, KV_HEADS, GROUP, DIM = 16, 2, 3, 16
# Blocks of two trunks, and of rows that begin with them as (trunk blocks, own blocks, cached, new).
TRUNKS = [np.arange(0, 70), np.arange(100, 180)]
ROWS = [
    (0, 70, 2, 1121, 1),
    (0, 70, 3, 1160, 1),
    # Ends inside the trunk, so that the group shares no more than 69 blocks.
    (0, 70, 0, 1119, 1),
    (0, 70, 4, 1125, 40),
    (1, 80, 1, 1281, 1),
    (1, 80, 1, 1285, 2),
    (1, 80, 1, 1290, 1),
    # Shares nothing.
    (1, 0, 3, 40, 1),
    (0, 0, 2, 0, 20),
]


def make(rows: list[tuple[int, int, int, int, int]], dtype: torch.dtype) -> tuple[torch.Tensor, LayerKV, StepPlan]:
    pool = KVPool([LayerShape(0, KV_HEADS, DIM, DIM)], 300, SIZE, dtype=dtype, device="cpu", fill=float("nan"))
    kv = pool.layers[0]
    own = iter(range(200, 300))
    items = []
    for trunk, blocks, more, cached, new in rows:
        table = np.array([*TRUNKS[trunk][:blocks], *(next(own) for _ in range(more))], np.int32)
        items.append(BatchItem(np.zeros(new, np.int32), cached, table))
    plan = StepPlan(items, SIZE, 300, pool.device)
    random = torch.Generator().manual_seed(2)
    for row in plan.rows:
        where = np.arange(row.kv_len)
        slots = torch.from_numpy(row.table[where // SIZE].astype(np.int64) * SIZE + where % SIZE)
        for tensor in (kv.key_slots, kv.value_slots):
            tensor[slots] = torch.randn(len(slots), KV_HEADS, DIM, generator=random).to(dtype)
    query = torch.randn(plan.total, KV_HEADS * GROUP, DIM, generator=random).to(dtype)
    return query, kv, plan


@pytest.mark.parametrize(
    "options",
    [
        AttentionOptions(0.3, want_lse=True),
        AttentionOptions(0.3, softcap=2.0, want_lse=True),
        AttentionOptions(0.3, sinks=torch.linspace(-1, 3, KV_HEADS * GROUP), want_lse=True),
    ],
    ids=["plain", "softcap", "sinks"],
)
def test_equals_the_reference_and_reads_shared_blocks_once(options: AttentionOptions) -> None:
    query, kv, plan = make(ROWS, torch.float32)
    kernel = PagedReference()
    out, lse = SharedPrefixAttention(kernel)(query, kv, plan, options)
    wanted, wanted_lse = ReferenceAttention()(query, kv, plan, options)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-5, atol=2e-6)
    tails, prefixes = kernel.calls
    assert prefixes == (False, [1 + 1 + 1 + 40, 1 + 2 + 1], [69 * SIZE, 80 * SIZE])
    lengths = [cached + new for *_, cached, new in ROWS]
    shared = [69 * SIZE] * 4 + [80 * SIZE] * 3 + [0, 0]
    assert tails == (True, [row.q_len for row in plan.rows], [a - b for a, b in zip(lengths, shared, strict=True)])


def test_over_flash_attention_3(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.attention.flash_attention import FlashAttention3

    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_attn_3())
    query, kv, plan = make(ROWS, torch.bfloat16)
    options = AttentionOptions(0.3)
    out, _ = SharedPrefixAttention(FlashAttention3())(query, kv, plan, options)
    wanted, _ = ReferenceAttention()(query, kv, plan, options)
    torch.testing.assert_close(out.float(), wanted.float(), rtol=3e-2, atol=3e-2)


def test_what_is_not_worth_two_calls() -> None:
    one = ROWS[0]
    short = [(0, 40, 1, 641, 1), (0, 40, 1, 645, 1)]
    unlike = [ROWS[0], ROWS[4]]
    for rows in ([one], short, unlike):
        query, kv, plan = make(rows, torch.float32)
        assert find_shared(plan) is None
        kernel = PagedReference()
        SharedPrefixAttention(kernel)(query, kv, plan, AttentionOptions(0.3))
        assert [causal for causal, *_ in kernel.calls] == [True]


def test_a_window_hides_the_beginning() -> None:
    query, kv, plan = make(ROWS[:2], torch.float32)
    options = AttentionOptions(0.3, window=100)
    kernel = PagedReference()
    out, _ = SharedPrefixAttention(kernel)(query, kv, plan, options)
    torch.testing.assert_close(out, ReferenceAttention()(query, kv, plan, options)[0], rtol=1e-5, atol=2e-6)
    assert len(kernel.calls) == 1
