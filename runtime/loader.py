"""Loads a decoder by name, folder or GGUF file, and proves that it can be served from a cache."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from runtime.attention import make_backend
from runtime.attention.hook import HOOK
from runtime.errors import InvalidRequest, ModelNotFound, ModelRefused
from runtime.loaded_model import LoadedModel, ModelInfo
from runtime.probe import probe, trace_layers
from runtime.refusals import refuse_unservable
from runtime.weight_layout import lay_out_for_decode
from runtime.weights_cache import (
    convert_gguf,
    converted_folder,
    file_digest,
    gemma3_gguf,
    scratch_folder,
    smollm2_gguf,
)

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}

_WEIGHT_SUFFIXES = (".safetensors", ".bin")
_WHOLE_FILE = 1 << 30
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20


def load_model(model: str, *, dtype: str = "auto", device: str = "auto", attention: str = "auto") -> LoadedModel:
    """Load a model, route its attention through the cache, and check its answers against the ordinary forward.

    model: `smollm2` or `gemma3-270m` (weights from an installed package), a local folder, a `.gguf` file, or a hub id.
    dtype: `auto` (float32 on CPU, bfloat16 on CUDA), float32, bfloat16 or float16. device: `auto`, `cpu`, `cuda`, ...
    attention: `auto` or the name of a back end. Nothing is fetched unless `model` is a hub id that is not in the hub's
    local cache. Raises ModelNotFound, ModelRefused (the message says why), or InvalidRequest for a bad setting.
    """
    target = _device(device)
    weights_dtype = _dtype(dtype, target)
    make_backend(attention)
    began = time.monotonic()
    folder, weights_digest = _locate(model, weights_dtype)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotFound(f"{model}: no model config that transformers knows in {folder} ({error})") from error
    refuse_unservable(config)
    log.info("loading %s (%s) on %s", model, weights_dtype, target)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=weights_dtype)
    network.to(target)
    loaded = prepare_model(
        network, tokenizer, name=_short_name(model), weights_digest=weights_digest, attention=attention
    )
    log.info("loaded %s in %.1f s", model, time.monotonic() - began)
    return loaded


def prepare_model(
    network: Any, tokenizer: Any, *, name: str, weights_digest: str = "", attention: str = "auto"
) -> LoadedModel:
    """Make a transformers model in memory servable: refusals, hook, layer trace, probe.

    tokenizer may be None (a model of random weights has none). Raises ModelRefused.
    """
    refuse_unservable(network.config)
    network.eval()
    network.requires_grad_(False)
    lay_out_for_decode(network)
    network.set_attn_implementation(HOOK)
    if network.config._attn_implementation != HOOK:
        raise ModelRefused(f"{type(network).__name__} does not let its attention be replaced")
    layers = trace_layers(network)
    backend = make_backend(attention)
    text = network.config.get_text_config(decoder=True)
    kv_dtype = network.dtype
    info = ModelInfo(
        name=name,
        architecture=type(network).__name__,
        context_length=int(getattr(text, "max_position_embeddings", 0) or 0),
        vocab_size=int(network.get_output_embeddings().weight.shape[0]),
        num_layers=len(layers),
        kv_heads=max(shape.kv_heads for shape in layers),
        head_dim=max(shape.key_dim for shape in layers),
        eos_token_ids=_eos_token_ids(network, tokenizer),
        dtype=_dtype_name(network.dtype),
        kv_dtype=_dtype_name(kv_dtype),
        device=str(network.device),
        kv_bytes_per_token=sum(shape.bytes_per_token(kv_dtype) for shape in layers),
        fingerprint=_fingerprint(network, tokenizer, weights_digest, kv_dtype),
        has_chat_template=getattr(tokenizer, "chat_template", None) is not None,
        attention_backend=backend.name,
    )
    keeps_logit_rows = "logits_to_keep" in inspect.signature(network.forward).parameters
    loaded = LoadedModel(network, tokenizer, info, layers, kv_dtype, keeps_logit_rows)
    error = probe(loaded)
    log.info("%s: logits through the cache differ from the ordinary forward by %.1e (relative)", name, error)
    return loaded


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest("device", name, f"must be a device that torch can use here ({error})") from error
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise InvalidRequest("dtype", name, f"must be one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short_name(model: str) -> str:
    path = Path(model)
    return path.resolve().stem if path.exists() and path.suffix == ".gguf" else path.name if path.exists() else model


def _locate(model: str, dtype: torch.dtype) -> tuple[Path, str]:
    """The folder that transformers loads from, and a digest of the weights in it."""
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
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"{model} holds no config.json")
        return path, _folder_digest(path)
    if path.suffix == ".gguf" or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ModelNotFound(f"{model} is neither a file nor a folder nor a hub id (owner/name), smollm2 or gemma3-270m")
    folder = _from_hub(model)
    return folder, _folder_digest(folder)


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


def _folder_digest(folder: Path) -> str:
    """Digest over the names and contents of a folder's weight files and config.

    A file of up to 1 GiB is read whole; of a larger one the size, the head and 64 samples of 1 MiB, evenly spread. An
    edit in place that misses every sample is not seen.
    """
    digest = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHT_SUFFIXES or path.name == "config.json")
    if not any(path.suffix in _WEIGHT_SUFFIXES for path in files):
        raise ModelNotFound(f"{folder} holds no weights ({' or '.join(_WEIGHT_SUFFIXES)})")
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


def _eos_token_ids(network: Any, tokenizer: Any) -> tuple[int, ...]:
    found: set[int] = set()
    generation = getattr(network, "generation_config", None)
    for holder in (generation, network.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return tuple(sorted(found))


def _fingerprint(network: Any, tokenizer: Any, weights_digest: str, kv_dtype: torch.dtype) -> str:
    """Digest over everything that decides what a token's keys and values are, and what text they stand for."""
    digest = hashlib.sha256()
    parts = [weights_digest, _dtype_name(network.dtype), _dtype_name(kv_dtype)]
    parts.append(json.dumps(network.config.to_diff_dict(), sort_keys=True, default=str))
    if tokenizer is not None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        parts.append(backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True))
        parts.append(json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True))
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()
