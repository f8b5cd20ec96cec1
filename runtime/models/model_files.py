"""Where a model's files are: a package, a local folder, a GGUF file, or the hub."""

from __future__ import annotations

from pathlib import Path

import torch

from runtime.errors import ModelNotFound
from runtime.models.fingerprint import file_digest
from runtime.models.weights_cache import convert_gguf, converted_folder, gemma3_gguf, scratch_folder, smollm2_gguf


def short_name(model: str) -> str:
    """What a model is called in reports: the name or hub id itself, or the last part of a path."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name


def locate(model: str, dtype: torch.dtype) -> tuple[Path, str | None]:
    """The folder that transformers loads from, and the digest of the GGUF file it was converted from, if it was.

    Converts a GGUF file that was not converted before. Nothing is fetched unless `model` is a hub id. Raises
    ModelNotFound.
    """
    if model == "smollm2":
        return _from_gguf(smollm2_gguf(), dtype)
    if model == "gemma3-270m":
        return _from_gemma_package(dtype)
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFound(f"{model} is a file, but not a .gguf file: pass the folder that holds config.json")
        return _from_gguf(path, dtype)
    if path.is_dir():
        if (path / "config.json").is_file():
            return path, None
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return _from_gguf(ggufs[0], dtype)
        raise ModelNotFound(f"{model} holds no config.json and {len(ggufs)} .gguf files; name the file to load")
    if path.suffix == ".gguf" or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ModelNotFound(f"{model} is neither a file nor a folder nor a hub id (owner/name), smollm2 or gemma3-270m")
    return _from_hub(model), None


def _from_gguf(path: Path, dtype: torch.dtype) -> tuple[Path, str]:
    digest = file_digest(path)
    return convert_gguf(path, digest, dtype), digest


def _from_gemma_package(dtype: torch.dtype) -> tuple[Path, str]:
    digest, assemble = gemma3_gguf()
    target = converted_folder(digest, dtype)
    if not target.is_dir():
        with scratch_folder(target.parent) as scratch:
            convert_gguf(assemble(scratch / "gemma-3-270m-q4_k_m.gguf"), digest, dtype)
    return target, digest


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:
        raise ModelNotFound(f"{model}: not in the hub's local cache and not to be fetched ({error})") from error
