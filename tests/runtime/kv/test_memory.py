"""Free memory as the kernel tells it, and a process that fills every pool that start-up lets it have."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime.kv import free_memory as memory
from runtime.kv.gpu_memory import free_gpu_memory
from runtime.kv.pool_size import default_memory

SCRIPT = """
import resource, sys
from pathlib import Path
where = sys.argv[3]
if where != "rlimit":
    # Before anything is taken: what a process brings along stays on its old group's account.
    (Path(where) / "cgroup.procs").write_text("0")
import numpy as np, torch
from runtime.config import ServeConfig
from runtime.execution.batch import BatchItem
from runtime.kv.settings import KVSettings
from runtime.execution.model_runner import ModelRunner
from runtime.kv.pool_size import GIB, check_host_cache, pool_blocks, spare_memory
from runtime.settings import BadConfig
from runtime.tiers.host_slots import HostSlots
from tests.runtime.small_llama import small_llama

torch.set_num_threads(1)
loaded = small_llama().repack(KVSettings(sys.argv[2], sensitive="none"))
room = int(sys.argv[1]) * 2**20
if where == "rlimit":
    used = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + room,) * 2)
else:
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = next((Path(where, a), Path(where, b)) for a, b in names if Path(where, a).exists())
    limit.write_text(str(int(used.read_text()) + room))
blocks = pool_blocks(ServeConfig(kv_memory="auto"), loaded.info)
try:
    pool_blocks(ServeConfig(num_blocks=blocks * 2), loaded.info)
    sys.exit("twice as much was accepted")
except BadConfig:
    pass
# Half for the pool, and for host memory whatever may be had beside it.
pool = blocks // 2
beside = spare_memory("cpu") - pool * 16 * loaded.info.kv_bytes_per_token
check_host_cache(ServeConfig(host_cache=beside - 2**20), loaded.info, pool)
try:
    check_host_cache(ServeConfig(host_cache=beside + 2**25), loaded.info, pool)
    sys.exit("more host memory than there is was accepted")
except BadConfig:
    pass
runner = ModelRunner(loaded, pool, 16)
host = HostSlots((beside - 2**20) // runner.pool.block_bytes, runner.pool.block_bytes)
host.rows.fill_(1)
for kv in runner.pool.layers.values():
    for tensor in kv.tensors:
        tensor.fill_(1)
items = [BatchItem(np.ones(100, np.int32), 0, np.arange(7, dtype=np.int32) + 7 * i) for i in range(16)]
runner.forward(items)
print(blocks * 16, pool * runner.pool.block_bytes + host.rows.nbytes)
"""
GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of its own that can limit memory."""
    for root in GROUPS:
        group = root / f"radixloop-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if any((group / limit).exists() for limit in ("memory.max", "memory.limit_in_bytes")):
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("no control group with a limit on memory can be made here")


def fill(dtype: str, where: str) -> None:
    """A process with 700 MiB to spare takes what start-up accepts, all of it, and lives."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, "700", dtype, where]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    tokens, taken = map(int, done.stdout.split())
    # Of 700 MiB, 5 % and 384 MiB are left for the work.
    assert 250 * 2**20 < taken < 290 * 2**20
    assert tokens > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "int4"])
def test_a_process_at_its_limit_fills_the_pool_that_it_was_given(dtype: str) -> None:
    fill(dtype, "rlimit")


@pytest.mark.slow
def test_a_process_in_a_control_group_is_not_killed_for_what_start_up_accepted(memory_group: Path) -> None:
    fill("fp32", str(memory_group))


def test_the_tightest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:   8388608 kB\nMemAvailable:   4194304 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", info)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert memory.free_memory() == 4 * 2**30
    (tmp_path / "memory.max").write_text(f"{3 * 2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2 * 2**30}\n")
    assert memory.free_memory() == 2**30
    # File pages that the group can drop are as good as free.
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2**29}\n")
    assert memory.free_memory() == 3 * 2**29
    assert memory.machine_memory() == 3 * 2**30
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() == 4 * 2**30
    status = tmp_path / "status"
    status.write_text(f"VmSize:\t{2**20} kB\nVmData:\t{2**19} kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    monkeypatch.setattr(resource, "getrlimit", lambda which: ((2 * 2**30 if which == resource.RLIMIT_AS else -1),) * 2)
    assert memory.free_memory() == 2**30
    status.write_text(f"VmSize:\t{4 * 2**20} kB\nVmData:\t{2**19} kB\n")
    assert memory.free_memory() == 0


def test_a_gpu_has_free_what_torch_holds_and_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [3 * 2**30]
    monkeypatch.setattr(torch.cuda, "empty_cache", held.clear)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 2**30 - sum(held), 16 * 2**30))
    assert free_gpu_memory("cuda:1") == 8 * 2**30
    assert default_memory("cuda") == 4 * 2**30
