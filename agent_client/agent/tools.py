"""The tools: list files, read a file, search, calculate. Every result is text of bounded length."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .calculator import CannotCalculate, calculate
from .workspace import MAX_FILE_BYTES, ToolError, Workspace

MAX_RESULT_CHARS = 1200
MAX_LINE_CHARS = 120
MAX_PATTERN_CHARS = 200
SEARCH_TIMEOUT_S = 5.0

_MAX_SHOWN_MATCHES = 60
_SEARCHER = Path(__file__).with_name("grep_process.py")


def _definition(
    name: str, description: str, required: tuple[str, ...], **parameters: tuple[str, str]
) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


# `branch` is carried out by the recorder: its result is what the branches found.
TOOL_DEFINITIONS: tuple[dict[str, Any], ...] = (
    _definition(
        "list_files",
        "List the files below a folder with their number of lines, longest first.",
        ("path",),
        path=("string", "Folder, relative to the root."),
        pattern=("string", "Shell wildcard for file names, such as *.py."),
    ),
    _definition(
        "read_file",
        "Read some lines of a text file.",
        ("path",),
        path=("string", "File, relative to the root."),
        first=("integer", "First line, from 1."),
        last=("integer", "Last line."),
    ),
    _definition(
        "grep",
        "Find the lines that match a regular expression.",
        ("pattern", "path"),
        pattern=("string", "Python regular expression."),
        path=("string", "File or folder, relative to the root."),
        files=("string", "Shell wildcard for file names."),
        only_match=("boolean", "Show what matched instead of whole lines."),
    ),
    _definition(
        "calculate",
        "Work out an arithmetic expression.",
        ("expression",),
        expression=("string", "Numbers, + - * / // % ** and parentheses."),
    ),
    _definition(
        "branch",
        "Look into one part of the question in a branch of this conversation; branches run side by side.",
        ("question",),
        question=("string", "What the branch is to find out."),
    ),
)


class Tools:
    """The tools over one workspace. `search_timeout_s` is how long one search may take."""

    def __init__(self, workspace: Workspace, search_timeout_s: float = SEARCH_TIMEOUT_S) -> None:
        self._workspace = workspace
        self._search_timeout_s = search_timeout_s
        self._tools: dict[str, Callable[..., str]] = {
            "list_files": self._list_files,
            "read_file": self._read_file,
            "grep": self._grep,
            "calculate": self._calculate,
        }

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The tool's result, at most MAX_RESULT_CHARS long. Raises ToolError, whose message is as short."""
        if name not in self._tools:
            raise ToolError(f"tool is {name!r}: there are {', '.join(self._tools)}")
        try:
            return _bounded(self._tools[name](**arguments))
        except TypeError as error:
            raise ToolError(f"{name}: {error}"[:MAX_RESULT_CHARS]) from None
        except ToolError as error:
            raise ToolError(f"{name}: {error}"[:MAX_RESULT_CHARS]) from None

    def _list_files(self, path: str, pattern: str = "*") -> str:
        lengths = {name: self._lines(name) for name in self._workspace.files(path, pattern)}
        longest_first = sorted(lengths, key=lambda name: (-(lengths[name] or 0), name))
        rows = [f"{lengths[name]} {name}" if lengths[name] is not None else f"- {name}" for name in longest_first]
        total = sum(lines or 0 for lines in lengths.values())
        return "\n".join([f"{len(rows)} files, {total} lines", *rows])

    def _read_file(self, path: str, first: int = 1, last: int = 60) -> str:
        for name, value in (("first", first), ("last", last)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ToolError(f"{name} is {value!r}: a line number from 1 up is needed")
        lines = self._workspace.text(path).splitlines()
        if first > last or first > len(lines):
            raise ToolError(f"lines {first}-{last} are not there: the file has {len(lines)} lines")
        last = min(last, len(lines))
        chosen = [line[:MAX_LINE_CHARS] for line in lines[first - 1 : last]]
        return "\n".join([f"{path}, lines {first}-{last} of {len(lines)}", *chosen])

    def _grep(self, pattern: str, path: str, files: str = "*", only_match: bool = False) -> str:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
            raise ToolError(f"pattern must have 1 to {MAX_PATTERN_CHARS} characters")
        names = self._workspace.files(path, files)
        small = [name for name in names if (self._workspace.root / name).stat().st_size <= MAX_FILE_BYTES]
        found = self._search(pattern, small, bool(only_match))
        lines = [f"{file}:{number}: {text}" for file, number, text in found["shown"]]
        return "\n".join([f"{found['matches']} matches in {found['files']} of {len(small)} files", *lines])

    def _search(self, pattern: str, files: list[str], only_match: bool) -> dict[str, Any]:
        question = {
            "pattern": pattern,
            "files": files,
            "only_match": only_match,
            "max_shown": _MAX_SHOWN_MATCHES,
            "max_line": MAX_LINE_CHARS,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(_SEARCHER)],
                input=json.dumps(question),
                cwd=self._workspace.root,
                capture_output=True,
                text=True,
                timeout=self._search_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ToolError(f"pattern is {pattern!r}: it took longer than {self._search_timeout_s:g} s") from None
        if done.returncode != 0:
            raise ToolError(f"the search failed: {done.stderr.strip().splitlines()[-1:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        if "error" in found:
            raise ToolError(found["error"])
        return found

    def _calculate(self, expression: str) -> str:
        try:
            value = calculate(expression)
        except CannotCalculate as error:
            raise ToolError(str(error)) from None
        return f"{expression} = {value:.6g}" if isinstance(value, float) else f"{expression} = {value}"

    def _lines(self, name: str) -> int | None:
        try:
            return len(self._workspace.text(name).splitlines())
        except ToolError:
            return None


def _bounded(text: str) -> str:
    """`text`, or whole lines of its beginning and how many are left out."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    lines = text.split("\n")
    kept: list[str] = []
    room = MAX_RESULT_CHARS - len("... and 1,000,000 more lines")
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, f"... and {len(lines) - len(kept):,} more lines"])
