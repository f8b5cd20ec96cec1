"""What a plan is made of: the tool calls of a task, each decided from the results before it."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

_MATCH = re.compile(r"(?P<path>[^\s:]+):(?P<line>\d+): (?P<text>.*)")
_LISTED = re.compile(r"(?P<lines>\d+) (?P<path>\S+)")
_LISTING = re.compile(r"(?P<files>\d+) files, (?P<lines>\d+) lines")
_READ = re.compile(r"(?P<path>\S+), lines \d+-\d+ of (?P<lines>\d+)")


class PlanFailed(Exception):
    """A result does not hold what the task needs to go on; the message says what was looked for."""


@dataclass(frozen=True)
class Use:
    """One tool call; the plan is sent its result, as text."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Branch:
    """One part of a question, with the plan that looks into it."""

    name: str
    question: str
    plan: Plan


# A plan yields what the agent does next and returns what it found, in words.
Step: TypeAlias = "Use | tuple[Branch, ...]"
Plan: TypeAlias = Generator[Step, Any, str]


@dataclass(frozen=True)
class Match:
    path: str
    line: int
    text: str


def use(tool: str, **arguments: Any) -> Use:
    return Use(tool, arguments)


def matches(result: str) -> list[Match]:
    """The lines that `grep` shows. Raises PlanFailed when there are none."""
    found = [_MATCH.fullmatch(line) for line in result.splitlines()[1:]]
    shown = [Match(m["path"], int(m["line"]), m["text"]) for m in found if m is not None]
    if not shown:
        raise PlanFailed(f"no match where one was expected: {_head(result)}")
    return shown


def match_count(result: str) -> int:
    """How many lines `grep` found, shown or not."""
    first = result.split(" ", 1)[0]
    if not first.isdigit():
        raise PlanFailed(f"no search result: {_head(result)}")
    return int(first)


def listed(result: str) -> list[tuple[str, int]]:
    """The files that `list_files` shows, with their lines, longest first. Raises PlanFailed when there are none."""
    found = [_LISTED.fullmatch(line) for line in result.splitlines()[1:]]
    shown = [(m["path"], int(m["lines"])) for m in found if m is not None]
    if not shown:
        raise PlanFailed(f"no file where one was expected: {_head(result)}")
    return shown


def listing_totals(result: str) -> tuple[int, int]:
    """Files and lines of everything that `list_files` found, shown or not."""
    found = _LISTING.match(result)
    if found is None:
        raise PlanFailed(f"no listing: {_head(result)}")
    return int(found["files"]), int(found["lines"])


def file_length(result: str) -> int:
    """Lines of the file that `read_file` read from."""
    found = _READ.match(result)
    if found is None:
        raise PlanFailed(f"no file: {_head(result)}")
    return int(found["lines"])


def around(match: Match, before: int = 4, after: int = 24) -> Use:
    """Read the file where `match` is."""
    return use("read_file", path=match.path, first=max(1, match.line - before), last=match.line + after)


def value(result: str) -> str:
    """What `calculate` worked out."""
    _, equals, number = result.rpartition(" = ")
    if not equals:
        raise PlanFailed(f"no value: {_head(result)}")
    return number


def _head(result: str) -> str:
    return repr(result[:120])
