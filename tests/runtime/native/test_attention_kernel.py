"""The attention kernel at shapes that models have and the general suite has not, in every build of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.attention import AttentionOptions, Needs, native
from runtime.attention.native import NativeAttention
from runtime.attention.native_layout import Segment, _Cutter, native_layout
from runtime.attention.proof import BRANCHES, DECODE, MIXED, trial
from runtime.execution.batch import BatchItem, StepPlan
from runtime.kv.precision import KVFormat
from tests.runtime.native.builds import build

CPU = Needs(torch.device("cpu"), torch.float32, torch.float32, 16, None, frozenset())
# Key and value dims, KV heads, group: odd ones, keys wider than values, one head, many.
SHAPES = [((4, 4), 1, 1), ((20, 20), 2, 3), ((36, 80), 3, 1), ((72, 72), 1, 7), ((192, 128), 2, 4), ((128, 128), 4, 8)]
BUILDS = {"this CPU": ["-march=native"], "AVX2": ["-mavx2", "-mfma", "-mf16c"], "plain": []}


@pytest.fixture(scope="module", params=BUILDS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeAttention:
    """The kernel as compiled for one kind of CPU."""
    built = build("attention", ["-O2", *BUILDS[request.param]], tmp_path_factory.mktemp("build"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "load_library", lambda name: built)
        return NativeAttention()


@pytest.mark.parametrize(("dims", "kv_heads", "group"), SHAPES)
def test_any_shape(backend: NativeAttention, dims: tuple[int, int], kv_heads: int, group: int) -> None:
    for rows in (MIXED, DECODE, BRANCHES):
        for window, softcap in ((None, None), (29, None), (None, 3.0)):
            options = AttentionOptions(dims[0] ** -0.5, window, softcap, want_lse=True)
            assert trial(CPU, dims, rows, options, kv_heads=kv_heads, group=group).error(backend) < 1e-5


KEPT = [KVFormat(name, name) for name in ("bf16", "fp16", "fp8_e4m3", "int8", "int4")]
KEPT += [KVFormat("int8", "fp32"), KVFormat("fp32", "int4")]


@pytest.mark.parametrize("kept", KEPT, ids=lambda one: one.name)
def test_narrow_and_packed_pools(backend: NativeAttention, kept: KVFormat) -> None:
    """Read as the numbers that they hold, so that the answer is the reference's to float32 rounding."""
    needs = replace(CPU, kv_format=kept)
    for dims in ((64, 64), (20, 12), (7, 9), (8, 1), (80, 72), (96, 192)):
        options = AttentionOptions(0.2, want_lse=True)
        # A long row alone, and many rows that share a tile.
        for rows in (DECODE, MIXED):
            assert trial(needs, dims, rows, options, kv_heads=3, group=3).error(backend) < 1e-5


def plan_of(rows: list[tuple[int, int, list[int]]], blocks: int) -> StepPlan:
    items = [BatchItem(np.zeros(new, np.int32), start, np.array(table, np.int32)) for start, new, table in rows]
    return StepPlan(items, 16, blocks, torch.device("cpu"))


def test_a_common_beginning_is_read_once() -> None:
    trunk = list(range(40))
    rows = [(40 * 16 + 5, 1, [*trunk, 40 + i]) for i in range(4)]
    layout = native_layout(plan_of(rows, 50), None, 2, 3, threads=1)
    members, low, high = layout.tasks[:, 1], layout.tasks[:, 5], layout.tasks[:, 6]
    # The trunk's positions once, with all four; then what each has to itself.
    assert (high - low)[members == 4].sum() == 40 * 16
    assert (high - low)[members == 1].tolist() == [6] * 4
    assert layout.merges[:, 0].tolist() == [0, 1, 2, 3]


def test_long_contexts_are_parted_among_threads_and_a_chunk_among_heads() -> None:
    alone = native_layout(plan_of([(4000, 1, list(range(251)))], 251), None, 2, 3, threads=4)
    assert len(alone.tasks) == 16
    assert sorted(alone.tasks[:, 5].tolist())[0] == 0
    assert alone.tasks[:, 6].max() == 4001
    chunk = native_layout(plan_of([(0, 512, list(range(32)))], 32), None, 2, 3, threads=1)
    assert len(chunk.merges) == 0
    assert sorted(set(chunk.tasks[:, 2].tolist())) == [0, 1]


@pytest.mark.parametrize("new", [60, 130])
def test_threads_are_done_with_a_small_chunk_at_about_the_same_time(new: int) -> None:
    """Three heads of three equal pieces would be five tasks for one of two threads and four for the other."""
    blocks = -(-(3000 + new) // 16)
    layout = native_layout(plan_of([(3000, new, list(range(blocks)))], blocks), None, 3, 3, threads=2)
    loads = [0, 0]
    for _, members, _, _, _, low, high, _ in layout.tasks.tolist():
        loads[loads.index(min(loads))] += members * (high - low)
    assert max(loads) < 1.06 * sum(loads) / 2
    # Every token of a piece that was cut is joined once.
    assert sorted(set(layout.merges[:, 0].tolist())) == layout.merges[:, 0].tolist()
    assert layout.merges[:, 2].sum() == layout.part_count


def test_which_of_equal_pieces_is_cut_finer_does_not_depend_on_where_in_memory_they_lie() -> None:
    at = np.array([3071], np.int32)
    pieces = sorted((Segment(np.array([i], np.int32), at, 0, 0, 3072) for i in range(3)), key=id)
    cutter = _Cutter(plan_of([(3071, 1, list(range(192)))], 192), None, 3, 3, threads=2)
    for order in (pieces, pieces[::-1]):
        cuts = cutter._cuts([(piece, 0, 3) for piece in order], [1e6] * 3)
        assert [len(cuts[id(piece)]) - 1 for piece in order] == [4, 3, 3]


def test_a_chunk_in_parts_is_the_reference_s(backend: NativeAttention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    options = AttentionOptions(0.2, want_lse=True)
    for window in (None, 700):
        one = trial(CPU, (64, 64), [(1500, 60), (1400, 1)], replace(options, window=window), kv_heads=3, group=3)
        tasks = native_layout(one.plan, window, 3, 3, threads=2).tasks
        assert (tasks[tasks[:, 1] > 1, 7] >= 0).any()
        assert one.error(backend) < 1e-5
