"""Our Triton kernel, interpreted on the CPU against the reference and compiled for a GPU that is not here.

No kernel of it runs on a GPU in these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: pip install triton")

SCRIPT = Path(__file__).with_name("triton_cases.py")
ROOT = SCRIPT.parents[2]


def run(*arguments: str, interpret: bool) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["TRITON_INTERPRET"] = "1" if interpret else "0"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_interpreted_kernel_equals_the_reference() -> None:
    found = run(interpret=True)
    cases = found["cases"]
    assert len(cases) >= 27
    wrong = {name: case for name, case in cases.items() if not (case["out"] <= case["limit"] > case["lse"])}
    assert wrong == {}
    # A row of padding, as CUDA graphs have them, comes out as zeros of no weight and disturbs nobody.
    assert found["padding"] == {"out": pytest.approx(0, abs=1e-5), "padding": 0.0, "lse": float("-inf")}
    assert 0 < found["branches"] < 1e-5
    # Offsets of blocks and heads beyond 32 bits, in float16.
    assert 0 < found["far"] < 4e-3
    # Whole models: a window, softcap, sinks, keys wider than values.
    assert len(found["families"]) == 3
    assert all(0 < error < 1e-5 for error in found["families"].values()), found["families"]


@pytest.mark.slow
def test_compiles_for_a_gpu() -> None:
    """On the way to machine code Triton checks shapes and types that its interpreter does not."""
    kernels = run("sm_90", interpret=False)
    assert len(kernels) == 6
    for name, found in kernels.items():
        assert found["code"] > 0
        assert found["shared"] <= 227 * 1024
        # Half precision goes through the tensor cores, and pages of it arrive by asynchronous copies.
        assert (found["products"] > 0) == name.startswith("bfloat16")
        if name.startswith("bfloat16") and not name.endswith("-packed"):
            assert found["copies"] > 0


def test_tiles_cover_every_query_once() -> None:
    from runtime.attention.paged_layout import paged_layout
    from runtime.attention.triton_backend import cut
    from runtime.execution.batch import BatchItem, StepPlan

    lengths = [1, 300, 1, 21, 22, 1, 64]
    table = np.arange(20, dtype=np.int32)
    items = [BatchItem(np.zeros(n, np.int32), 0, table) for n in lengths]
    plan = StepPlan(items, 16, 20, torch.device("cpu"))
    group = 3
    work = cut(paged_layout(plan), plan, group, 64)
    assert work.short is not None
    assert work.long is not None
    # 21 queries of three heads are 63 lanes: the last that fit into one short tile.
    assert work.short.rows.tolist() == [0, 2, 3, 5]
    assert work.short.block_m == 64
    packed = [0, *range(301, 302), *range(302, 323), 345]
    assert work.short.tokens.tolist() == packed
    assert [packed[number] for number in work.short.numbers.tolist()] == work.short.packed.tolist()
    begins = np.cumsum([0, *lengths])
    covered = [
        int(start) + i
        for row, first, start in zip(work.long.rows, work.long.firsts, work.long.packed, strict=True)
        for i in range(min(64 // group, lengths[int(row)] - int(first)))
        if int(start) == begins[int(row)] + int(first)
    ]
    assert covered == [*range(1, 301), *range(323, 345), *range(346, 410)]


@pytest.mark.parametrize(
    ("programs", "max_kv", "wanted"), [(8, 4096, 16), (8, 255, 1), (8, 1800, 4), (10**6, 10**6, 1), (1, 10**6, 32)]
)
def test_splits_fill_the_device(programs: int, max_kv: int, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.attention import triton_backend

    monkeypatch.setattr(triton_backend, "_multiprocessors", lambda _: 132)
    assert triton_backend.split_count(programs, max_kv, torch.device("cuda")) == wanted
