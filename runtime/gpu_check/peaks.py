"""What a device can do at most: from its maker's data sheet where the name is known, else measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Part of the device's name, memory GB/s, dense half-precision TFLOP/s of the tensor cores. More special names first.
DATA_SHEETS = (
    ("B200", 8000, 2250),
    ("H200", 4800, 989),
    ("H100 PCIe", 2000, 756),
    ("H100 NVL", 3900, 835),
    ("H100", 3350, 989),
    ("A100-SXM4-80GB", 2039, 312),
    ("A100 80GB", 1935, 312),
    ("A100", 1555, 312),
    ("L40S", 864, 362),
    ("L4", 300, 121),
    ("A10", 600, 125),
    ("RTX 4090", 1008, 165),
)


@dataclass(frozen=True)
class Peaks:
    """Limits of a device: of its memory and of its matrix products; `source` says whose figures they are."""

    bytes_per_s: float
    flops_per_s: float
    source: str


def peaks(device: torch.device, dtype: torch.dtype, name: str) -> Peaks:
    """Those of the device called `name`; measured with a large copy and a large product where it is not known."""
    for part, gigabytes, teraflops in DATA_SHEETS:
        if device.type == "cuda" and part in name and dtype in (torch.float16, torch.bfloat16):
            return Peaks(gigabytes * 1e9, teraflops * 1e12, f"data sheet of {part}")
    return measured(device, dtype)


def measured(device: torch.device, dtype: torch.dtype) -> Peaks:
    """The best of a few large copies and square products."""
    big = device.type == "cuda"
    source = torch.ones((1 << 30) if big else (1 << 24), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = best_seconds(lambda: target.copy_(source), device)
    side = 8192 if big else 512
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    product = best_seconds(lambda: left @ right, device)
    # A copy reads and writes.
    return Peaks(2 * source.numel() / copy, 2 * side**3 / product, "measured here")


def best_seconds(run: Callable[[], object], device: torch.device, times: int = 5) -> float:
    """Seconds of the fastest of `times` runs, the device's work included; one run before is not counted."""
    run()
    found = []
    for _ in range(times):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        found.append(time.perf_counter() - began)
    return min(found)


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
