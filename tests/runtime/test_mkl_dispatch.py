"""MKL told to use what an AMD CPU can do: in a process of its own, because it chooses once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.models.mkl_dispatch import SWITCH, has_avx512_of_amd

SCRIPT = """
import sys
from runtime.models.mkl_dispatch import has_avx512_of_amd, use_avx512_on_amd
changed = use_avx512_on_amd()
import ctypes, pathlib, torch
library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
if changed:
    assert library.mkl_serv_intel_cpu_true() == 1
torch.manual_seed(0)
a, b = torch.randn(67, 300), torch.randn(300, 129)
assert torch.allclose(a @ b, (a.double() @ b.double()).float(), atol=1e-3)
q, k, v = (torch.randn(1, 2, n, 64) for n in (130, 700, 700))
out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
exact = (q.double() @ k.double().transpose(2, 3) / 8).softmax(-1) @ v.double()
assert torch.allclose(out, exact.float(), atol=1e-5)
print(changed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["on", "off"])
def test_products_stay_right_and_the_switch_decides(switch: str) -> None:
    env = {**os.environ, SWITCH: switch}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    possible = has_avx512_of_amd(Path("/proc/cpuinfo"))
    assert done.stdout.strip() == str(possible and switch == "on")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f avx512dq\n", True),
        ("vendor_id : AuthenticAMD\nflags : fpu avx2\n", False),
        ("vendor_id : GenuineIntel\nflags : fpu avx2 avx512f avx512dq\n", False),
    ],
)
def test_whom_it_is_for(tmp_path: Path, text: str, expected: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert has_avx512_of_amd(file) is expected
    assert not has_avx512_of_amd(tmp_path / "none")
