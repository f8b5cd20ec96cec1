"""Digests that change whenever cached keys and values would be wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from runtime.errors import ModelNotFound
from runtime.kv.precision import KVFormat

WEIGHT_SUFFIXES = (".safetensors", ".bin")
_WHOLE_FILE = 1 << 30
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20
_READ_BYTES = 1 << 22

# Fields of a config that say where a model came from, not what it computes.
_INCIDENTAL = ("_name_or_path", "_model_name_or_path", "transformers_version")


def file_digest(path: Path) -> str:
    """SHA-256 of a whole file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """Digest over the names and contents of a folder's weight files and config.

    A file of up to 1 GiB is read whole; of a larger one the size, the head and 64 samples of 1 MiB, evenly spread. An
    edit in place that misses every sample is not seen.
    """
    digest = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES or path.name == "config.json")
    if not any(path.suffix in WEIGHT_SUFFIXES for path in files):
        raise ModelNotFound(f"{folder} holds no weights ({' or '.join(WEIGHT_SUFFIXES)})")
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update((file_digest(path) if path.stat().st_size <= _WHOLE_FILE else _sampled_digest(path)).encode())
    return digest.hexdigest()


def _sampled_digest(path: Path) -> str:
    digest = hashlib.sha256()
    size = path.stat().st_size
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def kept_fingerprint(fingerprint: str, kept: KVFormat) -> str:
    """Digest for a model whose KV also passes through tiers of another precision than its pool's."""
    return hashlib.sha256(f"{fingerprint} {kept.digest_text}".encode()).hexdigest()


def fingerprint(network: Any, tokenizer: Any, weights_digest: str, kv_format: KVFormat) -> str:
    """Digest over everything that decides what a token's keys and values are, and what text they stand for."""
    digest = hashlib.sha256()
    parts = [weights_digest, str(network.dtype), kv_format.digest_text]
    config = {key: value for key, value in network.config.to_diff_dict().items() if key not in _INCIDENTAL}
    parts.append(json.dumps(config, sort_keys=True, default=str))
    if tokenizer is not None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        parts.append(backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True))
        parts.append(json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True))
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()
