"""The pool and other large tensors ask for huge pages, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from runtime.kv.huge_pages import ask_for_huge_pages
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import LayerShape

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
linux_has_them = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not _ENABLED.is_file(), reason="a thing of Linux"
)


def asked_for(tensor: torch.Tensor) -> bool:
    """Whether Linux knows that the middle of a tensor is to be in huge pages."""
    address, here = tensor.data_ptr() + tensor.numel() * tensor.element_size() // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            begin, _, end = name.partition("-")
            here = int(begin, 16) <= address < int(end, 16)
        elif here and name == "VmFlags:":
            return "hg" in rest
    pytest.skip("this system does not tell the flags of memory")


@linux_has_them
def test_a_large_tensor_asks_and_keeps_its_numbers() -> None:
    tensor = torch.ones(3 << 20, dtype=torch.float32)
    assert ask_for_huge_pages(tensor)
    assert asked_for(tensor)
    assert bool((tensor == 1).all())


@linux_has_them
@pytest.mark.parametrize("fill", [0.0, float("nan")])
def test_the_pool_asks(fill: float) -> None:
    pool = KVPool([LayerShape(0, 4, 64, 64)], 512, 16, dtype=torch.float32, device="cpu", fill=fill)
    assert all(asked_for(tensor) for tensor in pool.layers[0].tensors)


def test_what_holds_no_whole_page_does_not_ask() -> None:
    assert not ask_for_huge_pages(torch.empty(1000))
    assert not ask_for_huge_pages(torch.empty(0))
    assert not ask_for_huge_pages(torch.empty(3 << 20, device="meta"))
