"""Models for the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.loaded_model import LoadedModel
from runtime.loader import load_model
from tests.runtime.services_harness import Server, serving


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> LoadedModel:
    """The tiny random Llama, loaded as the server loads it."""
    return load_model(str(tiny_model), dtype="fp32", device="cpu")


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    return load_model("smollm2", dtype="fp32", device="cpu")


@pytest.fixture(scope="session")
def gemma3() -> LoadedModel:
    return load_model("gemma3-270m", dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def server(tiny: LoadedModel) -> Iterator[Server]:
    """The tiny model behind its gRPC services, shared by the tests of a module."""
    with serving(tiny) as running:
        yield running
