"""Reads traces of model calls from .jsonl and .jsonl.gz files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import IO

from radix.errors import RadixError
from radix.trace_formats import FORMATS, Call, Line, Reader, Trace, detect
from radix.trace_values import BadLine, show

__all__ = ["Call", "Trace", "TraceError", "read_trace"]


class TraceError(RadixError):
    """A trace that cannot be read; the message names the file and, where one is to blame, the line."""


def read_trace(
    file: Path,
    *,
    block_size: int | None = None,
    sessions: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Trace:
    """Read a trace, detecting its format from the first line.

    Args:
        block_size: tokens an id stands for, where the file does not say (mooncake: 512 unless given). Ignored by token
            traces.
        sessions: read only the first so many sessions.
        on_bytes: told now and then how many bytes of the file have been read.

    Raises:
        TraceError: unreadable, empty, of an unknown format, or broken at a line.
        InvalidArgument: `block_size` contradicts the one in the file.
    """
    reader: Reader | None = None
    with closing(_lines(file, on_bytes)) as lines:
        for number, text in lines:
            try:
                line = _parse(text)
                if reader is None:
                    name = detect(line)
                    reader = FORMATS[name].reader(Trace(file, name, 1), block_size, sessions)
                reader.read(line, number)
            except BadLine as bad:
                raise TraceError(f"{file}:{number}: {bad}") from None
            if reader.done:
                break
    if reader is None or not reader.trace.calls:
        raise TraceError(f"{file}: there are no calls in it")
    return reader.trace


def _lines(file: Path, on_bytes: Callable[[int], None] | None) -> Generator[tuple[int, bytes]]:
    number = 0
    try:
        with file.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
            for number, text in enumerate(stream, start=1):
                if on_bytes is not None:
                    on_bytes(raw.tell())
                if text.strip():
                    yield number, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as broken:
        raise TraceError(f"{file}:{number + 1}: the gzip stream is broken ({broken})") from None
    except OSError as failed:
        raise TraceError(f"{file}: {failed.strerror or failed}") from None


def _parse(text: bytes) -> Line:
    try:
        line = json.loads(text)
    except UnicodeDecodeError as bad:
        raise BadLine(f"not UTF-8 at byte {bad.start + 1}") from None
    except json.JSONDecodeError as bad:
        raise BadLine(f"not JSON at column {bad.colno} ({bad.msg})") from None
    except (ValueError, RecursionError) as bad:
        raise BadLine(f"not JSON that can be read ({bad})") from None
    if not isinstance(line, dict):
        raise BadLine(f"{show(line)} is no JSON object")
    return line
