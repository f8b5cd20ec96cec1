"""Traces for the simulator's tests: real ones where they are, and small ones written by a test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real_trace() -> Callable[[str], Path]:
    """Path of a file in the data folder; skips the test where it is not there."""
    root = Path(os.environ.get("RADIXLOOP_DATA", Path(__file__).parents[3] / "shared" / "data"))

    def find(name: str) -> Path:
        if not (root / name).is_file():
            pytest.skip(f"{root / name} is not there: set RADIXLOOP_DATA to a folder that has {name}")
        return root / name

    return find


@pytest.fixture
def write_trace(tmp_path: Path) -> Callable[..., Path]:
    """Write lines, objects or text, to a .jsonl file."""

    def write(*lines: object, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write
