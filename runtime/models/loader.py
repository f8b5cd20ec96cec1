"""Loads a decoder by name, folder or GGUF file, and proves that it can be served from a cache."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from runtime.attention import Needs, check_name, choose
from runtime.attention.deterministic import DeterministicAttention
from runtime.attention.hook import HOOK
from runtime.errors import InvalidRequest, ModelNotFound, ModelRefused
from runtime.kv.choice import pool_format
from runtime.kv.precision import KVFormat
from runtime.kv.settings import AUTO, KVSettings
from runtime.models.bit_probe import probe_bits
from runtime.models.fingerprint import fingerprint, folder_digest
from runtime.models.forward import ModelForward
from runtime.models.forward_choice import check_choice, choose_forward
from runtime.models.linear_groups import group_linears
from runtime.models.loaded_model import LoadedModel, ModelInfo
from runtime.models.mkl_dispatch import use_avx512_on_amd
from runtime.models.model_files import locate, short_name
from runtime.models.probe import probe, trace_layers
from runtime.models.refusals import refuse_unservable
from runtime.models.row_invariant import make_row_invariant
from runtime.models.weight_report import weight_report

log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


def load_model(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str = "auto",
    forward: str = "auto",
    deterministic: bool = False,
    block_size: int = 16,
    kv: KVSettings = AUTO,
) -> LoadedModel:
    """Load a model, route its attention through the cache, and check its answers against the ordinary forward.

    model: `smollm2` or `gemma3-270m` (weights from an installed package), a local folder, a `.gguf` file, or a hub id.
    dtype: `auto` (float32 on CPU, bfloat16 on CUDA), float32, bfloat16 or float16. device: `auto`, `cpu`, `cuda`, ...
    attention: `auto` or the name of a back end. forward: `auto`, `lean` or `model`. deterministic: no bit of an answer
    depends on what was cached or on what shares the batch (row_invariant.py says how); the attention back end is then
    of that name. block_size: of the pool to come, which not every back end reads in place. kv: the pool's precision.
    Nothing is fetched unless `model` is a hub id that is not in the hub's local cache. Raises ModelNotFound,
    ModelRefused (the message says why), or InvalidRequest for a bad setting.
    """
    target = pick_device(device)
    weights_dtype = pick_dtype(dtype, target)
    check_name(_attention(attention, deterministic))
    check_choice(forward)
    kv.check()
    if target.type == "cpu" and use_avx512_on_amd():
        log.info("matrix products of torch use AVX-512")
    began = time.monotonic()
    folder, source_digest = locate(model, weights_dtype)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelNotFound(f"{model}: no config of a model that transformers knows in {folder} ({error})") from error
    refuse_unservable(config)
    weights_digest = source_digest or folder_digest(folder)
    log.info("loading %s (%s) on %s", model, weights_dtype, target)
    network, tokenizer = _read(folder, weights_dtype)
    network.to(target)
    loaded = prepare_model(
        network,
        tokenizer,
        name=short_name(model),
        weights_digest=weights_digest,
        attention=attention,
        forward=forward,
        deterministic=deterministic,
        block_size=block_size,
        kv=kv,
    )
    log.info("loaded %s in %.1f s", model, time.monotonic() - began)
    return loaded


def prepare_model(
    network: Any,
    tokenizer: Any,
    *,
    name: str,
    weights_digest: str = "",
    attention: str = "auto",
    forward: str = "auto",
    deterministic: bool = False,
    block_size: int = 16,
    kv: KVSettings = AUTO,
) -> LoadedModel:
    """Make a transformers model in memory servable: refusals, hook, layer trace, probes.

    tokenizer may be None (a model of random weights has none). Raises ModelRefused.
    """
    refuse_unservable(network.config)
    network.eval()
    network.requires_grad_(False)
    group_linears(network, input_ids=torch.tensor([[1, 2]], device=network.device), use_cache=False)
    if deterministic:
        make_row_invariant(network)
    network.set_attn_implementation(HOOK)
    if network.config._attn_implementation != HOOK:
        raise ModelRefused(f"{type(network).__name__} does not let its attention be replaced")
    layers, options = trace_layers(network)
    text = network.config.get_text_config(decoder=True)
    kv_format = KVFormat.dense(network.dtype)
    needs = Needs.of(
        layers, options, device=network.device, dtype=network.dtype, kv_format=kv_format, block_size=block_size
    )
    info = ModelInfo(
        name=name,
        architecture=type(network).__name__,
        context_length=int(getattr(text, "max_position_embeddings", 0) or 0),
        vocab_size=int(network.get_output_embeddings().out_features),
        num_layers=len(layers),
        kv_heads=max(shape.kv_heads for shape in layers),
        head_dim=max(shape.key_dim for shape in layers),
        eos_token_ids=_eos_token_ids(network, tokenizer),
        dtype=_dtype_name(network.dtype),
        kv_dtype=kv_format.name,
        device=str(network.device),
        kv_bytes_per_token=kv_format.bytes_per_token(layers),
        plain_kv_bytes_per_token=kv_format.bytes_per_token(layers),
        fingerprint="",
        has_chat_template=getattr(tokenizer, "chat_template", None) is not None,
        attention_backend=choose(_attention(attention, deterministic), needs),
        forward=ModelForward.name,
        weights=weight_report(network),
    )
    log.info("%s: weights are kept as %s", name, info.weights)
    loaded = LoadedModel(network, tokenizer, info, layers, kv_format, ModelForward(network), _never)
    error = probe(loaded)
    log.info("%s: logits through the cache differ from the ordinary forward by %.1e (relative)", name, error)
    loaded = choose_forward(loaded, forward, options)
    repack = _Repack(loaded, needs, _attention(attention, deterministic), weights_digest)
    loaded = repack(kv)
    if deterministic:
        probe_bits(loaded)
    return loaded


@dataclass(frozen=True)
class _Repack:
    """`LoadedModel.repack` of a model whose pool is of the weights' dtype so far."""

    exact: LoadedModel
    needs: Needs
    attention: str
    weights_digest: str

    def __call__(self, kv: KVSettings) -> LoadedModel:
        kv.check()
        loaded = self.exact
        found = pool_format(loaded, kv, self.weights_digest)
        backend = loaded.info.attention_backend
        if found != loaded.kv_format:
            backend = choose(self.attention, replace(self.needs, kv_format=found))
        info = replace(
            loaded.info,
            kv_dtype=found.name,
            kv_bytes_per_token=found.bytes_per_token(loaded.layers),
            attention_backend=backend,
            fingerprint=fingerprint(loaded.model, loaded.tokenizer, self.weights_digest, found),
        )
        return replace(loaded, info=info, kv_format=found, repack=self)


def _never(kv: KVSettings) -> LoadedModel:
    raise InvalidRequest("kv_dtype", kv.kv, "cannot be changed while the model is being proved")


def _read(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        loading: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:
        raise ModelNotFound(f"{folder}: the weights or the tokenizer cannot be read ({error})") from error
    network, report = loading
    # transformers fills what a checkpoint lacks with random numbers, and goes on.
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise ModelRefused(f"{folder}: the checkpoint lacks {len(lacking)} tensors, the first is {lacking[0]}")
    return network, tokenizer


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is a GPU. Raises InvalidRequest when torch cannot use it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest("device", name, f"must be a device that torch can use here ({error})") from error
    return device


def _attention(name: str, deterministic: bool) -> str:
    if not deterministic:
        return name
    if name not in ("auto", DeterministicAttention.name):
        raise InvalidRequest("attention", name, "must be auto in deterministic mode, which has a back end of its own")
    return DeterministicAttention.name


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name; `auto` is float32 on a CPU and bfloat16 elsewhere. Raises InvalidRequest."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise InvalidRequest("dtype", name, f"must be one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _eos_token_ids(network: Any, tokenizer: Any) -> tuple[int, ...]:
    found: set[int] = set()
    generation = getattr(network, "generation_config", None)
    for holder in (generation, network.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return tuple(sorted(found))
