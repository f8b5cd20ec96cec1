"""How large the tiers are and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.errors import InvalidRequest
from runtime.kv.settings import check_precision

Foreign = Literal["keep", "remove"]


@dataclass(frozen=True)
class TierSettings:
    """Sizes in bytes; a tier without one is not there.

    Attributes:
        disk: folder and size of the disk tier.
        persist: folder of what is saved when the runtime stops, with room for all that device and host hold.
        persist_s: how long saving may take.
        foreign: what becomes of files that belong to another model, template, precision or layout.
        kv_dtype: the precision of all tiers; auto is the pool's. Any other changes what comes back.
    """

    host_bytes: int = 0
    disk: Path | None = None
    disk_bytes: int = 0
    persist: Path | None = None
    persist_s: float = 20.0
    foreign: Foreign = "keep"
    kv_dtype: str = "auto"

    def __bool__(self) -> bool:
        return bool(self.host_bytes or self.disk is not None or self.persist is not None)


def check_kept(name: str, pool: str, *, deterministic: bool) -> None:
    """Raises InvalidRequest for a precision of tiers that cannot be, or not behind a pool at precision `pool`."""
    check_precision("host_kv_dtype", name)
    if deterministic and name not in ("auto", pool):
        raise InvalidRequest("host_kv_dtype", name, "must be auto with deterministic: a hit must answer as a miss")
