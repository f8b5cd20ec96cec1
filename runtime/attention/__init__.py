"""Attention back ends over paged KV, all behind one small interface."""

from __future__ import annotations

from runtime.attention.deterministic import DeterministicAttention
from runtime.attention.interface import AttentionBackend, AttentionOptions
from runtime.attention.reference import ReferenceAttention
from runtime.attention.sdpa import SdpaAttention
from runtime.errors import InvalidRequest

BACKENDS: dict[str, type[AttentionBackend]] = {
    "reference": ReferenceAttention,
    "sdpa": SdpaAttention,
    "deterministic": DeterministicAttention,
}


def make_backend(name: str) -> AttentionBackend:
    """The back end of that name; `auto` is the fastest that can run here. Raises InvalidRequest for an unknown name."""
    if name == "auto":
        name = "sdpa"
    if name not in BACKENDS:
        raise InvalidRequest("attention", name, f"must be one of auto, {', '.join(BACKENDS)}")
    return BACKENDS[name]()


__all__ = ["AttentionBackend", "AttentionOptions", "ReferenceAttention", "SdpaAttention", "make_backend"]
