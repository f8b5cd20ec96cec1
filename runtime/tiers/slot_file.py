"""Blocks in a file: a page that says whose they are, then slots of one size.

Every slot is a record that can be judged by itself: a header with the block's identity and tokens under a CRC, and the
payload under the checksum that the header carries. A write that was cut short leaves a record that is not believed.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radix.cold import Entry
from runtime.tiers.checksum import checksum
from runtime.tiers.host_slots import BadBlock

VERSION = 2
SUFFIX = ".radixkv"
_FORMAT = "radixloop-kv"
_PAGE = 4096
_MAGIC = b"RDXKVBLK"
# Magic, version, tokens, stamp, payload bytes, payload checksum, digest before the block, scope, owner.
_HEAD = struct.Struct("<8sIIQQQ16s32s16s")
_CRC = struct.Struct("<I")


class SlotFileInUse(Exception):
    """Another process has the file open."""


@dataclass(frozen=True)
class Owner:
    """Whose blocks a file holds: they are of use to no other model, template, precision or block layout.

    Attributes:
        fingerprint: see `runtime.models.fingerprint`.
        model, kv_dtype: for people.
    """

    fingerprint: str
    model: str
    kv_dtype: str
    block_size: int
    block_bytes: int

    @property
    def digest(self) -> bytes:
        """16 bytes that tell this owner from every other."""
        parts = (str(VERSION), self.fingerprint, str(self.block_size), str(self.block_bytes))
        return blake2b("\0".join(parts).encode(), digest_size=16).digest()

    def file_in(self, folder: Path) -> Path:
        return folder / f"{self.digest.hex()[:16]}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Record:
    """A block that a file claims to hold. `stamp` grows with its last use."""

    slot: int
    parent: bytes
    scope: bytes
    tokens: bytes
    stamp: int


class SlotFile:
    """An open file of slots, this process's alone.

    Raises:
        OSError: the folder or the file cannot be had.
        SlotFileInUse.
    """

    def __init__(self, folder: Path, owner: Owner, slots: int) -> None:
        self.path = owner.file_in(folder)
        self.slots = slots
        self._owner = owner
        self._digest = owner.digest
        self._header_bytes = -(-(_HEAD.size + 4 * owner.block_size + _CRC.size) // 64) * 64
        self._record_bytes = -(-(self._header_bytes + owner.block_bytes) // 64) * 64
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._fd, self.path)
            page = (json.dumps({"format": _FORMAT, "version": VERSION, **asdict(owner)}) + "\n").encode()
            if os.pread(self._fd, _PAGE, 0).rstrip(b"\0") != page:
                # New, or its first page was torn: what it holds is judged record by record all the same.
                os.pwrite(self._fd, page.ljust(_PAGE, b"\0"), 0)
            # A smaller size than last time.
            if os.fstat(self._fd).st_size > _PAGE + slots * self._record_bytes:
                os.ftruncate(self._fd, _PAGE + slots * self._record_bytes)
        except (OSError, SlotFileInUse):
            os.close(self._fd)
            raise

    @staticmethod
    def slots_in(size: int, owner: Owner) -> int:
        """How many slots fit a file of `size` bytes."""
        header = -(-(_HEAD.size + 4 * owner.block_size + _CRC.size) // 64) * 64
        return max(0, size - _PAGE) // (-(-(header + owner.block_bytes) // 64) * 64)

    def close(self) -> None:
        os.close(self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)

    def write(self, slot: int, entry: Entry, payload: NDArray[np.uint8], payload_sum: int, stamp: int) -> None:
        """Write a record. Raises OSError."""
        head = _HEAD.pack(
            _MAGIC,
            VERSION,
            len(entry.tokens) // 4,
            stamp,
            len(payload),
            payload_sum,
            entry.parent,
            entry.scope,
            self._digest,
        )
        head += entry.tokens
        head += _CRC.pack(zlib.crc32(head))
        parts: list[bytes | memoryview] = [head.ljust(self._header_bytes, b"\0"), payload.data]
        want = self._header_bytes + len(payload)
        wrote = os.pwritev(self._fd, parts, self._at(slot))
        if wrote != want:
            raise OSError(f"{wrote} of {want} bytes were written to {self.path}")

    def read(self, slot: int, entry: Entry, out: NDArray[np.uint8]) -> None:
        """Read a record's payload into `out`, uint8[block_bytes]. Raises BadBlock, OSError."""
        head = bytearray(self._header_bytes)
        got = os.preadv(self._fd, [head, out.data], self._at(slot))
        if got != len(head) + len(out):
            raise BadBlock(f"slot {slot} of {self.path} ends early")
        record = self._parse(slot, bytes(head))
        if record is None or (record.parent, record.scope) != (entry.parent, entry.scope):
            raise BadBlock(f"slot {slot} of {self.path} holds no block, or another one")
        if record.tokens != entry.tokens:
            raise BadBlock(f"slot {slot} of {self.path} holds other tokens")
        if checksum(out) != _HEAD.unpack_from(head)[5]:
            raise BadBlock(f"slot {slot} of {self.path} fails its checksum")

    def scan(self) -> Iterator[Record]:
        """Yield what the headers claim; payloads are looked at when they are read. Raises OSError."""
        size = os.fstat(self._fd).st_size
        for slot in range(min(self.slots, max(0, size - _PAGE) // self._record_bytes + 1)):
            record = self._parse(slot, os.pread(self._fd, self._header_bytes, self._at(slot)))
            if record is not None:
                yield record

    def restamp(self, slot: int, stamp: int) -> None:
        """Say that a record was used later than it was written. Raises OSError."""
        raw = os.pread(self._fd, self._header_bytes, self._at(slot))
        record = self._parse(slot, raw)
        if record is not None:
            fields = list(_HEAD.unpack_from(raw))
            fields[3] = stamp
            head = _HEAD.pack(*fields) + record.tokens
            os.pwrite(self._fd, head + _CRC.pack(zlib.crc32(head)), self._at(slot))

    def erase(self, slots: Iterable[int]) -> None:
        """Let nobody believe these records any more. Raises OSError."""
        for slot in slots:
            os.pwrite(self._fd, bytes(len(_MAGIC)), self._at(slot))

    def forget(self, scope: bytes | None) -> None:
        """Erase the records of a scope, or all; also those that were only not written over yet. Raises OSError."""
        if scope is None:
            os.ftruncate(self._fd, _PAGE)
        else:
            self.erase([record.slot for record in self.scan() if record.scope == scope])
        self.sync()

    def _at(self, slot: int) -> int:
        return _PAGE + slot * self._record_bytes

    def _parse(self, slot: int, raw: bytes) -> Record | None:
        if len(raw) < self._header_bytes:
            return None
        magic, version, tokens, stamp, size, _, parent, scope, owner = _HEAD.unpack_from(raw)
        if magic != _MAGIC or version != VERSION or owner != self._digest or size != self._owner.block_bytes:
            return None
        if not 1 <= tokens <= self._owner.block_size:
            return None
        end = _HEAD.size + 4 * tokens
        if zlib.crc32(raw[:end]) != _CRC.unpack_from(raw, end)[0]:
            return None
        return Record(slot, parent, scope, raw[_HEAD.size : end], stamp)


@dataclass(frozen=True)
class ForeignFile:
    """A file in a folder that belongs to somebody else: another model, or another layout of this one."""

    path: Path
    bytes: int
    model: str
    kv_dtype: str


def foreign_files(folder: Path, owner: Owner) -> list[ForeignFile]:
    """Return the other owners' files in a folder, in order of their names. Raises OSError."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []:
        if path == owner.file_in(folder) or not path.is_file():
            continue
        try:
            with path.open("rb") as file:
                said = json.loads(file.read(_PAGE).rstrip(b"\0"))
            model, kv_dtype = str(said["model"]), str(said["kv_dtype"])
        except (OSError, ValueError, KeyError, TypeError):
            model, kv_dtype = "unknown", "unknown"
        found.append(ForeignFile(path, path.stat().st_size, model, kv_dtype))
    return found


def remove_unused(path: Path) -> None:
    """Remove a file of slots. Raises SlotFileInUse where a runtime has it open, OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _lock(fd, path)
        path.unlink()
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SlotFileInUse(f"{path} is in use by another runtime") from None
