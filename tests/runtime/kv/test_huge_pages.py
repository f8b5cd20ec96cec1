"""Large tensors ask for huge pages, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from runtime.kv.huge_pages import ask_for_huge_pages

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not sys.platform.startswith("linux") or not _ENABLED.is_file(), reason="a thing of Linux")
def test_a_large_tensor_asks_and_keeps_its_numbers() -> None:
    tensor = torch.ones(3 << 20, dtype=torch.float32)
    assert ask_for_huge_pages(tensor)
    assert bool((tensor == 1).all())


def test_what_holds_no_whole_page_does_not_ask() -> None:
    assert not ask_for_huge_pages(torch.empty(1000))
    assert not ask_for_huge_pages(torch.empty(0))
    assert not ask_for_huge_pages(torch.empty(3 << 20, device="meta"))
