"""Where a runtime is looked for, where nobody says."""

from __future__ import annotations

import os

TARGET_VARIABLE = "RADIXLOOP_TARGET"
DEFAULT_TARGET = "localhost:50051"


def default_target() -> str:
    """The environment's RADIXLOOP_TARGET, else localhost:50051."""
    return os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET
