"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import os
import socketserver
from pathlib import Path

import pytest

from tests.tiny_llama import save_tiny_llama

# As the runtime's own entry point does, before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# Half a second, unless told, until an HTTP server sees that it is to end.
socketserver.BaseServer.serve_forever.__defaults__ = (0.01,)
# What imports and collection make stays to the end: to search it for garbage, again and again, took a third of both.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of 4,096 tokens of context and a byte-level tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_llama(folder)
    return folder
