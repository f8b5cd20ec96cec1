"""Loads a compiled kernel into the process, on the threads that torch has already."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch

from runtime.native.compiler import NativeUnavailable, compile_shared

log = logging.getLogger(__name__)


@cache
def load_library(name: str) -> ctypes.CDLL:
    """The library of `<name>.c` in this package, compiled unless it was before.

    Its work is shared out by torch's own OpenMP runtime (threads.h): a second one beside it would have threads of its
    own, which spin while torch's compute. Raises NativeUnavailable, with the reason.
    """
    source = Path(__file__).with_name(f"{name}.c")
    path = compile_shared(source)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        # Cut off or of another system: what is in the folder is only a copy.
        log.info("%s does not load (%s); compiling it again", path, error)
        path.unlink(missing_ok=True)
        try:
            library = ctypes.CDLL(str(compile_shared(source)))
        except OSError as again:
            raise NativeUnavailable(f"the compiled {source.name} does not load: {again}") from again
    library.use_threads.argtypes = (ctypes.c_void_p,)
    library.use_threads.restype = None
    library.use_threads(_parallel_region())
    return library


def _parallel_region() -> int | None:
    """Address of `GOMP_parallel` in the OpenMP runtime that torch runs on; None where it has another way."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            # Looked up among the libraries that this one needs, whatever their names in this build of torch.
            found = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(found, ctypes.c_void_p).value
    return None
