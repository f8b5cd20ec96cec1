"""The checksum that every stored block carries."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray


def checksum(payload: NDArray[np.uint8]) -> int:
    """64 bits over contiguous bytes: CRC-32, and the sum of the whole 64-bit words folded to 32 bits."""
    words = payload[: len(payload) // 8 * 8].view(np.uint64)
    total = int(words.sum(dtype=np.uint64))
    return zlib.crc32(payload.data) << 32 | (total ^ total >> 32) & 0xFFFFFFFF
