"""How much memory this process can still take before somebody kills it or an allocation fails."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CGROUPS = Path("/sys/fs/cgroup")
# Names of a group's limit, its use and, in memory.stat, of file pages that it can drop: versions 2 and 1.
_VERSIONS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def machine_memory() -> int:
    """Bytes of memory that this process may have in all: the machine's, or its container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _groups())])


def free_memory() -> int:
    """Bytes that the machine, the container's limit and the process's own limits leave."""
    return max(0, min([_machine_free(), *(limit - used for limit, used in (*_groups(), *_limits()))]))


def _machine_free() -> int:
    return _field(_MEMINFO, "MemAvailable") or machine_memory()


def _groups() -> Iterator[tuple[int, int]]:
    """Limit and use of the control groups that this process is in and can see."""
    try:
        own = {line.rpartition(":")[2].strip("/") for line in Path("/proc/self/cgroup").read_text().splitlines()}
    except OSError:
        own = set()
    # A group above may be the tighter one.
    own |= {str(above) for path in own for above in Path(path).parents}
    for folder, limit_name, used_name, dropped_name in _VERSIONS:
        for path in sorted({"", *own}):
            where = _CGROUPS / folder / path
            try:
                limit, used = int((where / limit_name).read_text()), int((where / used_name).read_text())
            except (OSError, ValueError):
                continue
            yield limit, used - (_field(where / "memory.stat", dropped_name, unit=1) or 0)


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use of this process's address space and data, where they are limited."""
    for limit, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            yield most, _field(_STATUS, field) or 0


def _field(file: Path, name: str, unit: int = 1024) -> int | None:
    """A number of a file of `name value` lines."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * unit for line in lines if line.split()[:1] in ([name], [f"{name}:"])), None)
