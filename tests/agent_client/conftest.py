"""A toy runtime for the client to talk to, and the folder of recorded loops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .toy_runtime import ToyRuntime


@pytest.fixture
def toy() -> Iterator[ToyRuntime]:
    runtime = ToyRuntime()
    yield runtime
    runtime.stop()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = Path(os.environ.get("RADIXLOOP_DATA", Path(__file__).parents[2] / "../shared/data"))
    if not folder.is_dir():
        pytest.skip(f"no recorded loops at {folder} (RADIXLOOP_DATA names the folder)")
    return folder
