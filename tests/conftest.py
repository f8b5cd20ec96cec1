"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tiny_llama import save_tiny_llama

# As the runtime's own entry point does, before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of 4,096 tokens of context and a byte-level tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_llama(folder)
    return folder
