"""Attention back ends over paged KV, all behind one small interface."""

from __future__ import annotations

from runtime.attention.choice import check_name, choose, fixed_shapes, make_backend, reads_in_place, survey
from runtime.attention.interface import AttentionBackend, AttentionOptions
from runtime.attention.needs import Needs
from runtime.attention.reference import ReferenceAttention
from runtime.attention.sdpa import SdpaAttention

__all__ = [
    "AttentionBackend",
    "AttentionOptions",
    "Needs",
    "ReferenceAttention",
    "SdpaAttention",
    "check_name",
    "choose",
    "fixed_shapes",
    "make_backend",
    "reads_in_place",
    "survey",
]
