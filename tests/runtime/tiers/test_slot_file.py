"""A file of blocks believes nothing that it did not write whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from radix.cold import Entry
from runtime.tiers.checksum import checksum
from runtime.tiers.host_slots import BadBlock
from runtime.tiers.slot_file import Owner, SlotFile, SlotFileInUse, foreign_files

OWNER = Owner("f" * 64, "tiny", "float32", block_size=4, block_bytes=1000)


def entry(n: int, tokens: int = 4) -> Entry:
    return Entry(bytes([n] * 16), b"s" * 32, np.arange(n, n + tokens, dtype="<i4").tobytes(), 1)


def payload(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, 1000, dtype=np.uint8)


def write(file: SlotFile, slot: int, n: int, stamp: int = 0, tokens: int = 4) -> Entry:
    file.write(slot, entry(n, tokens), payload(n), checksum(payload(n)), stamp)
    return entry(n, tokens)


def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    write(file, 3, 1, stamp=5)
    write(file, 0, 2, stamp=4, tokens=2)
    file.close()
    file = SlotFile(tmp_path, OWNER, 10)
    records = {record.slot: record for record in file.scan()}
    assert [(slot, r.parent, r.tokens, r.stamp) for slot, r in sorted(records.items())] == [
        (0, entry(2).parent, entry(2, 2).tokens, 4),
        (3, entry(1).parent, entry(1).tokens, 5),
    ]
    out = np.empty(1000, dtype=np.uint8)
    file.read(3, entry(1), out)
    assert (out == payload(1)).all()
    file.close()


def test_a_flipped_bit_anywhere_is_a_bad_block(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    write(file, 0, 1)
    size = os.fstat(file._fd).st_size
    out = np.empty(1000, dtype=np.uint8)
    for at in [*range(4096, 4096 + 124, 3), *range(4096 + 128, 4096 + 128 + 1000, 37)]:
        raw = os.pread(file._fd, 1, at)
        os.pwrite(file._fd, bytes([raw[0] ^ 0x10]), at)
        with pytest.raises(BadBlock):
            file.read(0, entry(1), out)
        os.pwrite(file._fd, raw, at)
    file.read(0, entry(1), out)
    assert os.fstat(file._fd).st_size == size
    file.close()


def test_another_block_than_the_wanted_one_is_a_bad_block(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    write(file, 0, 1)
    out = np.empty(1000, dtype=np.uint8)
    for other in (entry(2), entry(1, 3), Entry(entry(1).parent, b"t" * 32, entry(1).tokens, 1)):
        with pytest.raises(BadBlock):
            file.read(0, other, out)
    with pytest.raises(BadBlock, match="ends early"):
        file.read(7, entry(1), out)
    file.close()


def test_a_file_cut_at_any_length_opens(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    for slot in range(3):
        write(file, slot, slot)
    file.close()
    whole = file.path.read_bytes()
    found: set[int] = set()
    for length in [*range(0, len(whole), 97), len(whole)]:
        file.path.write_bytes(whole[:length])
        file = SlotFile(tmp_path, OWNER, 10)
        out = np.empty(1000, dtype=np.uint8)
        for record in file.scan():
            try:
                file.read(record.slot, entry(record.slot), out)
            except BadBlock:
                continue
            assert (out == payload(record.slot)).all()
            found.add(record.slot)
        file.close()
    assert found == {0, 1, 2}


def test_two_runtimes_never_share_a_file(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    with pytest.raises(SlotFileInUse):
        SlotFile(tmp_path, OWNER, 10)
    file.close()
    SlotFile(tmp_path, OWNER, 10).close()


def test_files_of_others_are_named(tmp_path: Path) -> None:
    others = [
        Owner("e" * 64, "tiny", "float32", 4, 1000),
        Owner("f" * 64, "tiny", "float16", 4, 500),
        Owner("f" * 64, "tiny", "float32", 8, 2000),
    ]
    for owner in [OWNER, *others]:
        SlotFile(tmp_path, owner, 10).close()
    (tmp_path / "junk.radixkv").write_bytes(b"\xff" * 5000)
    assert sorted((f.model, f.kv_dtype) for f in foreign_files(tmp_path, OWNER)) == [
        ("tiny", "float16"),
        ("tiny", "float32"),
        ("tiny", "float32"),
        ("unknown", "unknown"),
    ]


def test_a_smaller_size_cuts_the_file(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    for slot in range(10):
        write(file, slot, slot)
    file.close()
    file = SlotFile(tmp_path, OWNER, 4)
    assert [record.slot for record in file.scan()] == [0, 1, 2, 3]
    file.close()


def test_a_record_that_is_stamped_anew_is_whole(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, OWNER, 10)
    write(file, 3, 1, stamp=5)
    file.restamp(3, 8)
    file.restamp(4, 9)
    assert [(record.slot, record.stamp) for record in file.scan()] == [(3, 8)]
    out = np.empty(1000, dtype=np.uint8)
    file.read(3, entry(1), out)
    assert (out == payload(1)).all()
    file.erase([3])
    assert list(file.scan()) == []
    file.close()
