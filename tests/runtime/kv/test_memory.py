"""Free memory as the kernel tells it, and a process that fills every pool that start-up lets it have."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.kv import free_memory as memory

SCRIPT = """
import resource, sys
import numpy as np, torch
from runtime.config import ServeConfig
from runtime.batch import BatchItem
from runtime.kv.settings import KVSettings
from runtime.model_runner import ModelRunner
from runtime.pool_size import pool_blocks
from runtime.settings import BadConfig
from tests.runtime.small_llama import small_llama

torch.set_num_threads(1)
loaded = small_llama().repack(KVSettings(sys.argv[2], sensitive="none"))
used = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[1]) * 2**20,) * 2)
blocks = pool_blocks(ServeConfig(kv_memory="auto"), loaded.info)
try:
    pool_blocks(ServeConfig(num_blocks=blocks * 2), loaded.info)
    sys.exit("twice as much was accepted")
except BadConfig:
    pass
runner = ModelRunner(loaded, blocks, 16)
for kv in runner.pool.layers.values():
    for tensor in kv.tensors:
        tensor.fill_(1)
items = [BatchItem(np.ones(100, np.int32), 0, np.arange(7, dtype=np.int32) + 7 * i) for i in range(16)]
runner.forward(items)
print(blocks * 16, blocks * runner.pool.block_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "int4"])
def test_a_process_at_its_limit_fills_the_pool_that_it_was_given(dtype: str) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, "700", dtype]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    tokens, taken = map(int, done.stdout.split())
    # Of 700 MiB, 5 % and 384 MiB are left for the work.
    assert 250 * 2**20 < taken < 290 * 2**20
    assert tokens > 10_000


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
