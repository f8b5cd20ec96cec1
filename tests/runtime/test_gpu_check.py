"""The check of a device, on this one: every part of it at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.attention import choice
from runtime.attention.needs import Needs
from runtime.attention.sdpa import SdpaAttention
from runtime.gpu_check import correctness, peaks, report
from runtime.gpu_check.__main__ import main
from runtime.gpu_check.plan import SMALL
from runtime.gpu_check.shapes import Costs
from runtime.kv.precision import KVFormat

SCRIPT = Path(__file__).parents[2] / "deploy" / "gpu_check.py"


@pytest.mark.slow
def test_the_script_runs_from_anywhere(tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--small", "--json", str(target)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "every answer was right" in done.stdout
    found = json.loads(target.read_text())
    backends = {one["name"]: one for one in found["backends"]}
    assert backends["sdpa"]["trials"] == 48
    assert backends["triton"]["notes"] == ["needs a CUDA GPU, not cpu"]
    assert found["logits"][0]["what"] == "hit against miss"
    assert {(one["batch"], one["context"]) for one in found["decode"]} == {(1, 32), (3, 32), (1, 96), (3, 96)}
    assert all(one["step_ms"] > 0 for one in found["decode"])
    # All but the 8 new tokens of the second asking.
    assert [one["cached_tokens"] for one in found["first_token"]] == [40, 152]


@pytest.mark.slow
def test_a_wrong_answer_fails_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(SdpaAttention):
        name = "reference"

        def __call__(self, *args: Any) -> Any:
            out, lse = super().__call__(*args)
            return out * 1.01, lse

    class Broken(SdpaAttention):
        def __call__(self, *_: Any) -> Any:
            raise RuntimeError("no kernel image is available")

    changed = {"reference": Wrong, "deterministic": Broken}
    for name, made in changed.items():
        monkeypatch.setitem(choice.CANDIDATES, name, replace(choice.CANDIDATES[name], make=made))
    assert main(["--device", "cpu", "--small"]) == 1
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "WRONG" in lines["reference"]
    assert "failed: RuntimeError: no kernel image is available" in lines["deterministic"]
    assert "ok" in lines["sdpa"]


def test_a_setting_that_cannot_be_had_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--small", "--attention", "triton"]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err


def test_what_has_no_room_is_checked_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: Any) -> tuple[float, float]:
        raise torch.OutOfMemoryError("tried to allocate 2.19 GiB")

    monkeypatch.setattr(correctness, "_kernel_speeds", crowded)
    needs = Needs(torch.device("cpu"), torch.float32, KVFormat.dense(torch.float32), 16, None, frozenset())
    found = correctness._check_backend("sdpa", needs, replace(SMALL, block_sizes=(16,)))
    assert found.passed
    assert found.trials == 24
    assert (found.decode_ms, found.chunk_ms) == (None, None)
    assert found.notes == ("not timed: too little memory",)


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("NVIDIA H200", 4800), ("NVIDIA H100 PCIe", 2000), ("NVIDIA H100 80GB HBM3", 3350)]
)
def test_limits_by_name(name: str, gigabytes: int) -> None:
    found = peaks.peaks(torch.device("cuda"), torch.bfloat16, name)
    assert found.bytes_per_s == gigabytes * 1e9
    assert found.flops_per_s > 7e14


def test_limits_of_an_unknown_device_are_measured() -> None:
    found = peaks.peaks(torch.device("cpu"), torch.float32, "NVIDIA H200")
    assert found.source == "measured here"
    assert found.bytes_per_s > 0
    assert found.flops_per_s > 0


def test_costs_of_a_pass() -> None:
    costs = Costs(weight_bytes=1000, product_weights=400, head_weights=100, attention_flops=8)
    assert costs.step_bytes(kv_tokens=30, kv_bytes_per_token=4) == 1120
    # Three tokens see six keys.
    assert costs.prefill_flops(3) == 2 * (1200 + 100) + 48


def test_columns_line_up() -> None:
    text = report.table("Title", ["a", "longer"], [["wide cell", "1"], ["x", "2"]])
    assert text.splitlines()[1:] == ["Title", "a          longer", "wide cell  1", "x          2"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu() -> None:
    """Every back end that the GPU has, and recorded decode steps."""
    assert main(["--device", "cuda", "--small"]) == 0
