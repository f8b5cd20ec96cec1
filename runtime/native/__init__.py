"""Kernels in C for the CPU at hand: compiled by the machine's own compiler when first needed, kept, and loaded."""

from __future__ import annotations

from runtime.native.compiler import NativeUnavailable, compile_shared
from runtime.native.library import load_library

__all__ = ["NativeUnavailable", "compile_shared", "load_library"]
