"""Compiles a C source of this package for this CPU, once: results are kept in the cache folder, keyed by digest."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import time
from functools import lru_cache
from pathlib import Path

from runtime.models.weights_cache import cache_root, scratch_folder

log = logging.getLogger(__name__)

SWITCH = "RADIXLOOP_NATIVE"
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# How a compiler is told to use all that this CPU has; the first that it takes.
_FOR_THIS_CPU = (("-march=native",), ("-mcpu=native",), ())
_TIMEOUT_S = 120.0


class NativeUnavailable(Exception):
    """Why no native kernel is to be had here; whoever meets it has another way."""


def compile_shared(source: Path) -> Path:
    """The shared library of a C source, compiled now unless it was before.

    The digest covers the source, the headers beside it, the flags, the compiler and the CPU, so that nothing stale is
    ever loaded, also where machines of several kinds share the folder. CC names another compiler. Raises
    NativeUnavailable where there is no compiler, it fails, the folder cannot be written, or RADIXLOOP_NATIVE is `off`.
    """
    if os.environ.get(SWITCH, "on") == "off":
        raise NativeUnavailable(f"{SWITCH} is off")
    compiler = _compiler()
    target = cache_root() / "native" / f"{source.stem}-{_digest(source, compiler)}.so"
    if not target.is_file():
        try:
            _build(source, compiler, target)
        except OSError as error:
            raise NativeUnavailable(f"{target.parent} cannot be written ({error})") from error
    return target


def _compiler() -> tuple[str, ...]:
    """The command of a C compiler, as words."""
    named = os.environ.get("CC")
    for command in [shlex.split(named)] if named else [[name] for name in _COMPILERS]:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return path, *command[1:]
    raise NativeUnavailable(f"no C compiler is installed ({named or ', '.join(_COMPILERS)})")


def _digest(source: Path, compiler: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in (source, *sorted(source.parent.glob("*.h"))):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    # An upgraded compiler is another file.
    real = Path(compiler[0]).resolve()
    stat = real.stat()
    for fact in (*compiler, str(real), str(stat.st_size), str(stat.st_mtime_ns), repr((_FLAGS, _FOR_THIS_CPU)), _cpu()):
        digest.update(fact.encode() + b"\0")
    return digest.hexdigest()[:24]


@lru_cache(maxsize=1)
def _cpu() -> str:
    """What `native` means here: the kind of CPU and its instructions."""
    kind = f"{platform.system()} {platform.machine()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{kind} {platform.processor()}"
    names = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join([kind, *sorted({line for line in lines if line.partition(":")[0].strip() in names})])


def _build(source: Path, compiler: tuple[str, ...], target: Path) -> None:
    began = time.monotonic()
    with scratch_folder(target.parent) as scratch:
        out = scratch / target.name
        told = ""
        for tuning in _FOR_THIS_CPU:
            command = [*compiler, *_FLAGS, *tuning, str(source), "-o", str(out), "-lm"]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise NativeUnavailable(f"{compiler[0]} took more than {_TIMEOUT_S:.0f} s") from error
            if done.returncode == 0 and out.is_file():
                out.rename(target)
                log.info("compiled %s in %.1f s, once (kept in %s)", source.name, time.monotonic() - began, target)
                return
            told = told or done.stderr.strip()
    first = next((line for line in told.splitlines() if "error" in line), told[:200] or "it said nothing")
    raise NativeUnavailable(f"{compiler[0]} does not compile {source.name}: {first}")
