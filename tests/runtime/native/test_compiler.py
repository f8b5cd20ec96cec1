"""Kernels are compiled once, for this machine, and whoever cannot compile hears why."""

from __future__ import annotations

import ctypes
import stat
from pathlib import Path

import pytest

from runtime.native import NativeUnavailable, compile_shared, library

SOURCE = '#include "answer.h"\n#include "threads.h"\nint answer(void) { return ANSWER; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with headers beside it, and a cache folder of its own."""
    monkeypatch.setenv("RADIXLOOP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("RADIXLOOP_NATIVE", raising=False)
    folder = tmp_path / "source"
    folder.mkdir()
    threads = Path(library.__file__).with_name("threads.h").read_text()
    (folder / "threads.h").write_text(threads)
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    (folder / "kernel.c").write_text(SOURCE)
    return folder / "kernel.c"


def answer(path: Path) -> int:
    found: int = ctypes.CDLL(str(path)).answer()
    return found


def test_compiled_once_and_again_when_anything_changes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_shared(source)
    assert answer(first) == 42
    built = first.stat().st_mtime_ns
    assert compile_shared(source) == first
    assert first.stat().st_mtime_ns == built
    source.with_name("answer.h").write_text("#define ANSWER 7\n")
    second = compile_shared(source)
    assert second != first
    assert answer(second) == 7
    monkeypatch.setattr("runtime.native.compiler._cpu", lambda: "another one")
    assert compile_shared(source) not in (first, second)
    # Nothing half done is left behind.
    assert {path.suffix for path in first.parent.iterdir()} == {".so"}


def test_why_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O9")
    with pytest.raises(NativeUnavailable, match=r"no C compiler is installed \(no-such-compiler"):
        compile_shared(source)
    monkeypatch.setenv("RADIXLOOP_NATIVE", "off")
    with pytest.raises(NativeUnavailable, match="RADIXLOOP_NATIVE is off"):
        compile_shared(source)
    monkeypatch.delenv("RADIXLOOP_NATIVE")
    monkeypatch.delenv("CC")
    source.write_text('#include "answer.h"\nint answer(void) { return ANSWER }\n')
    with pytest.raises(NativeUnavailable, match=r"does not compile kernel\.c: .*error"):
        compile_shared(source)
    source.write_text(SOURCE)
    occupied = tmp_path / "occupied"
    occupied.write_text("")
    monkeypatch.setenv("RADIXLOOP_CACHE_DIR", str(occupied))
    with pytest.raises(NativeUnavailable, match="cannot be written"):
        compile_shared(source)


def test_a_compiler_that_knows_no_native_cpu_serves(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "picky"
    script.write_text('#!/bin/sh\ncase "$*" in *=native*) echo "error: what cpu?" >&2; exit 1;; esac\nexec cc "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(script))
    assert answer(compile_shared(source)) == 42


def test_a_spoilt_copy_is_made_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_shared(source).write_bytes(b"not a library")
    monkeypatch.setattr(library, "__file__", str(source.with_name("library.py")))
    loaded = library.load_library.__wrapped__("kernel")
    assert loaded.answer() == 42
