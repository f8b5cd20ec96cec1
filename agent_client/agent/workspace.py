"""The folder that the tools may see, and nothing beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MAX_FILE_BYTES = 1_000_000

# What is built, fetched or generated is no part of the sources. Folders that begin with a dot are left out too.
_SKIPPED_FOLDERS = ("build", "dist", "node_modules", "__pycache__", "*.egg-info")
_SKIPPED_FILES = ("*.pyc", "*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


class ToolError(Exception):
    """What a tool answers instead of a result; the agent reads it like any other result."""


class Workspace:
    """Text files below `root`. Paths are relative to it, and none leads out of it: by `..`, by symlink, by `/`.

    Raises NotADirectoryError when `root` is no folder.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise NotADirectoryError(f"{root} is no folder")

    def resolve(self, path: str) -> Path:
        """The place that `path` means. Raises ToolError when there is nothing or it lies outside."""
        if not isinstance(path, str) or "\0" in path:
            raise ToolError(f"path is {path!r}: a path relative to the root is needed")
        try:
            found = (self.root / path).resolve()
            exists = found.exists()
        except (OSError, RuntimeError, ValueError):
            raise ToolError(f"path is {path!r}: it cannot be followed") from None
        if not found.is_relative_to(self.root):
            raise ToolError(f"path is {path!r}: it leads out of the root")
        if not exists:
            raise ToolError(f"path is {path!r}: there is no such file or folder")
        return found

    def files(self, path: str, pattern: str) -> list[str]:
        """Names, relative to the root and sorted, of the files at or below `path` whose own name fits `pattern`.

        `pattern` has shell wildcards. Symlinks are not followed. Raises ToolError as `resolve` does.
        """
        start = self.resolve(path)
        found = [start] if start.is_file() else self._below(start)
        names = [file.relative_to(self.root).as_posix() for file in found if fnmatchcase(file.name, pattern)]
        return sorted(names)

    def text(self, path: str) -> str:
        """A file's text. Raises ToolError when it is no text file or has more than MAX_FILE_BYTES."""
        file = self.resolve(path)
        if not file.is_file():
            raise ToolError(f"path is {path!r}: it is no file")
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ToolError(f"path is {path!r}: it has {size:,} bytes, at most {MAX_FILE_BYTES:,} are read")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ToolError(f"path is {path!r}: {error.strerror}") from None
        if b"\0" in data:
            raise ToolError(f"path is {path!r}: it holds no text")
        return data.decode("utf-8", errors="replace")

    def _below(self, start: Path) -> Iterator[Path]:
        for folder, folders, files in os.walk(start):
            folders[:] = [name for name in folders if not name.startswith(".") and not _fits(name, _SKIPPED_FOLDERS)]
            for name in files:
                file = Path(folder, name)
                if not _fits(name, _SKIPPED_FILES) and not file.is_symlink() and file.is_file():
                    yield file


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
