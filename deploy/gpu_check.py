#!/usr/bin/env python3
"""Check and measure the runtime on one GPU: `python deploy/gpu_check.py`, or `--device cpu --small` without one.

Needs torch, transformers and NumPy; nothing is fetched, and nothing of this project needs to be installed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]

from runtime.gpu_check.__main__ import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
