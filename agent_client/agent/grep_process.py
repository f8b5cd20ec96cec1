"""Searches files by regular expression, as a program of its own: Python cannot stop a pattern that backtracks forever,
but a process can be killed.

Reads {"pattern", "files", "only_match", "max_shown", "max_line"} as JSON from standard input, with the files relative
to the working folder, and writes {"matches", "files", "shown": [[file, line number, text], ...]} or {"error"}.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def search(pattern: str, files: list[str], only_match: bool, max_shown: int, max_line: int) -> dict[str, Any]:
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": f"pattern is {pattern!r}: {error}"}
    matches, matching_files = 0, 0
    shown: list[tuple[str, int, str]] = []
    for file in files:
        with open(file, "rb") as stream:
            data = stream.read()
        if b"\0" in data:
            continue
        before = matches
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            found = expression.search(line)
            if found is not None:
                matches += 1
                if len(shown) < max_shown:
                    shown.append((file, number, (found[0] if only_match else line).strip()[:max_line]))
        matching_files += matches > before
    return {"matches": matches, "files": matching_files, "shown": shown}


if __name__ == "__main__":
    json.dump(search(**json.load(sys.stdin)), sys.stdout)
