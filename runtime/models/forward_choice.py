"""Which forward pass a loaded model gets."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from runtime.attention.interface import AttentionOptions
from runtime.attention.native import NativeAttention
from runtime.errors import InvalidRequest, ModelRefused
from runtime.models.decoder_ops import DecoderOps, TorchOps
from runtime.models.lean_forward import LeanForward
from runtime.models.loaded_model import LoadedModel
from runtime.models.probe import probe
from runtime.native.decoder import NativeOps

log = logging.getLogger(__name__)

CHOICES = ("auto", "lean", "model")


def check_choice(name: str) -> None:
    """Raises InvalidRequest for a name that `choose_forward` does not know."""
    if name not in CHOICES:
        raise InvalidRequest("forward", name, f"must be one of {', '.join(CHOICES)}")


def choose_forward(loaded: LoadedModel, name: str, options: tuple[AttentionOptions, ...]) -> LoadedModel:
    """The model with the forward of that name; `auto` is the lean one where it was seen to answer as the model does.

    Raises ModelRefused when `lean` is asked for and the model is not fit for it.
    """
    if name == "model":
        return loaded
    try:
        dims = {dim for shape in loaded.layers for dim in (shape.key_dim, shape.value_dim)}
        if len(dims) != 1:
            raise ModelRefused(f"heads of {sorted(dims)} numbers")
        lean = LeanForward(loaded.model, options, dims.pop(), _ops(loaded))
        faster = replace(loaded, forward=lean, info=replace(loaded.info, forward=lean.name))
        error = probe(faster)
    except (ModelRefused, RuntimeError, TypeError) as why:
        if name == "lean":
            raise ModelRefused(f"{loaded.info.architecture} cannot run on the lean forward: {why}") from why
        log.info("%s keeps its own forward: %s", loaded.info.name, why)
        return loaded
    log.info("%s runs on the lean forward, which differs from its own by %.1e (relative)", loaded.info.name, error)
    return faster


def _ops(loaded: LoadedModel) -> DecoderOps:
    """Those in C where attention runs in C too: one setting decides about both."""
    if loaded.info.attention_backend == NativeAttention.name and loaded.model.dtype == torch.float32:
        return NativeOps()
    return TorchOps()
