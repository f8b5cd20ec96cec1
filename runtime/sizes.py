"""Sizes, shares and folders as the command line writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes of a size such as "512MiB", "2GiB", "1.5 GB" or a plain number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("must be a size such as 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_quota(text: str) -> tuple[str | None, float]:
    """Salt and share of the pool of SALT=SHARE; no salt before the = means the namespace without one.

    Raises ValueError.
    """
    salt, separator, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = 0.0
    if not separator or not 0 < value <= 1:
        raise ValueError(f"{text!r} must be SALT=SHARE with a share above 0 and at most 1")
    return salt or None, value


def _pool_memory(value: object) -> object:
    if value == "auto":
        return value
    size = parse_size(value)
    if size < 1:
        raise ValueError("must be at least 1")
    return size


def parse_disk(text: str) -> tuple[Path, int]:
    """Folder and bytes of DIR:SIZE. Raises ValueError."""
    folder, _, size = text.rpartition(":")
    if not folder:
        raise ValueError("must be DIR:SIZE, such as /var/cache/radixloop:20GiB")
    return Path(folder), parse_size(size)


Size = Annotated[int, BeforeValidator(parse_size)]
PoolMemory = Annotated[int | Literal["auto"], BeforeValidator(_pool_memory)]
