"""Lets the MKL inside torch use AVX-512 on AMD CPUs that have it.

MKL picks its kernels by the maker of the CPU before it looks at what the CPU can do, and gives AMD's the AVX2 ones.
What decides is one exported function without arguments, `mkl_serv_intel_cpu_true`; answering 1 in its place, by
preloading a library, has been the known remedy since MKL 2020.1 dropped its environment variable. Done here in memory,
it needs neither a compiler nor a preloaded file. Torch's attention kernel for CPU multiplies through MKL.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
from pathlib import Path

log = logging.getLogger(__name__)

SWITCH = "RADIXLOOP_MKL_AVX512"
_DECIDES = "mkl_serv_intel_cpu_true"
# mov eax, 1; ret
_RETURN_ONE = b"\xb8\x01\x00\x00\x00\xc3"
_READ, _WRITE, _EXECUTE = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC


def use_avx512_on_amd() -> bool:
    """Change MKL's choice in this process; False where there is nothing to change or the system does not allow it.

    To be called before the first matrix product: MKL chooses once. RADIXLOOP_MKL_AVX512=off leaves MKL alone.
    """
    wanted = os.environ.get(SWITCH, "on") != "off"
    if not wanted or platform.machine() != "x86_64" or not has_avx512_of_amd(Path("/proc/cpuinfo")):
        return False
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = getattr(ctypes.CDLL(str(library)), _DECIDES)
    except (OSError, AttributeError):
        return False
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    begin = address - address % mmap.PAGESIZE
    length = address + len(_RETURN_ONE) - begin
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(begin, length, _READ | _WRITE | _EXECUTE) != 0:
        log.info("MKL stays with AVX2: no process may change its code here (errno %d)", ctypes.get_errno())
        return False
    ctypes.memmove(address, _RETURN_ONE, len(_RETURN_ONE))
    protect(begin, length, _READ | _EXECUTE)
    return True


def has_avx512_of_amd(cpuinfo: Path) -> bool:
    """Whether the file describes a CPU of AMD's with AVX-512."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in text and " avx512f " in text
