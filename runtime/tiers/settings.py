"""How large the tiers are and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Foreign = Literal["keep", "remove"]


@dataclass(frozen=True)
class TierSettings:
    """Sizes in bytes; a tier without one is not there.

    Attributes:
        disk: folder and size of the disk tier.
        persist: folder of what is saved when the runtime stops; `persist_bytes` None takes as much as device and host
            hold.
        persist_s: how long saving may take.
        foreign: what becomes of files that belong to another model, template, precision or layout.
    """

    host_bytes: int = 0
    disk: Path | None = None
    disk_bytes: int = 0
    persist: Path | None = None
    persist_bytes: int | None = None
    persist_s: float = 20.0
    foreign: Foreign = "keep"

    def __bool__(self) -> bool:
        return bool(self.host_bytes or self.disk is not None or self.persist is not None)
