"""Messages over a pipe: four bytes of length, then the message."""

from __future__ import annotations

import struct
from typing import IO

# What an answer begins with: the process has started, a compiled grammar follows, a refusal in words follows.
READY, DONE, REFUSED = b"+", b"=", b"-"
_HEAD = struct.Struct(">I")


def write_frame(out: IO[bytes], data: bytes) -> None:
    out.write(_HEAD.pack(len(data)))
    out.write(data)
    out.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """The next message; None where the other side ended, in the middle of one too."""
    head = source.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    (size,) = _HEAD.unpack(head)
    data = source.read(size)
    return data if len(data) == size else None
