"""Kernels as compiled for another kind of CPU than the one at hand."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime.native import library


def build(name: str, flags: Sequence[str], folder: Path) -> ctypes.CDLL:
    """`runtime/native/NAME.c` with these flags, its work shared out as in the runtime; skips where it cannot be."""
    source, out = Path(library.__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    command = ["cc", "-std=gnu11", "-fPIC", "-shared", *flags, str(source), "-o", str(out), "-lm"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no compiler for it here: {done.stderr[:200]!r}")
    built = ctypes.CDLL(str(out))
    built.use_threads.argtypes = (ctypes.c_void_p,)
    built.use_threads(library._parallel_region())
    return built
