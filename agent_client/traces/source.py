"""A trace file as JSON records that know where they stand."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .model import TraceError

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Record:
    """One JSON value, its number in the file (from 1), and its place in words."""

    number: int
    where: str
    value: Any


class Source:
    """A file of JSON lines or of one JSON document, gzipped or not (told by content, not by name)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @cached_property
    def _data(self) -> bytes:
        try:
            data = self.path.read_bytes()
            return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"{self.path}: broken gzip file: {error}") from None
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from None

    @cached_property
    def document(self) -> Any | None:
        """The whole file as one JSON value; None when it is not (JSON lines are not)."""
        try:
            return json.loads(self._data)
        except (ValueError, RecursionError):
            return None

    def records(self) -> Iterator[Record]:
        """The document, or each of its items when it is a list of objects or lists, or each line.

        Raises TraceError at the first line that is no JSON.
        """
        document = self.document
        if document is None:
            yield from self._lines()
        elif isinstance(document, list) and document and not _is_message(document[0]):
            for i, item in enumerate(document):
                yield Record(i + 1, f"{self.name} item {i + 1}", item)
        else:
            yield Record(1, f"{self.name} line 1", document)

    def _lines(self) -> Iterator[Record]:
        for number, line in enumerate(self._data.split(b"\n"), 1):
            if not line.strip():
                continue
            where = f"{self.name} line {number}"
            try:
                yield Record(number, where, json.loads(line))
            except UnicodeDecodeError as error:
                raise TraceError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
            except json.JSONDecodeError as error:
                raise self._not_json(number, error) from None
            except RecursionError:
                raise TraceError(f"{where}: nested too deeply") from None

    def _not_json(self, number: int, error: json.JSONDecodeError) -> TraceError:
        """A document over several lines is broken where reading it as a whole stops, not on its first line."""
        if number == 1:
            try:
                json.loads(self._data)
            except json.JSONDecodeError as whole:
                number, error = whole.lineno, whole
            except UnicodeDecodeError:
                pass
        return TraceError(f"{self.name} line {number}: not JSON: {error.msg} at column {error.colno}")

    def first(self) -> Record:
        """Raises TraceError when the file holds nothing."""
        for record in self.records():
            return record
        raise TraceError(f"{self.path}: the file is empty")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value
