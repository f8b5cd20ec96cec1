"""The tasks: questions about a repository, each with the plan by which its answer is looked up.

The plans decide from what the tools answer, so that a task outlives renamed files and growing modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from .steps import (
    Branch,
    Match,
    Plan,
    PlanFailed,
    around,
    file_length,
    listed,
    listing_totals,
    match_count,
    matches,
    use,
    value,
)


@dataclass(frozen=True)
class Task:
    """`plan` starts afresh at every call."""

    name: str
    question: str
    plan: Callable[[], Plan]


def _eviction() -> Plan:
    listing = yield use("list_files", path="radix", pattern="*.py")
    hits = matches((yield use("grep", pattern=r"^POLICIES\b", path="radix", files="*.py")))
    definition = hits[0]
    read = yield around(definition, before=12, after=10)
    length = file_length(read)
    outline = yield use("grep", pattern=r"^(class|def) |^    def ", path=definition.path)
    queue = _first(matches(outline), "class ")
    yield around(queue, before=0, after=34)
    uses = yield use("grep", pattern=r"policy_named|EvictionQueue\(", path="radix", files="*.py")
    yield around(_elsewhere(matches(uses), definition.path))
    _, lines = listing_totals(listing)
    share = value((yield use("calculate", expression=f"100 * {length} / {lines}")))
    return f"{definition.path} has {length} of {lines} lines, {share} %: {definition.text}"


def _api() -> Plan:
    listing = listed((yield use("list_files", path="proto", pattern="*.proto")))
    methods = yield use("grep", pattern=r"^\s*rpc \w+", path="proto", files="*.proto", only_match=True)
    total = match_count(methods)
    streams = yield use("grep", pattern=r"returns \(stream \w+\)", path="proto", files="*.proto", only_match=True)
    streaming = match_count(streams)
    first = matches(streams)[0]
    yield around(_fullest(matches(methods)), before=3, after=14)
    message = first.text.split("stream ")[-1].split(")")[0]
    answer = matches((yield use("grep", pattern=rf"^message {message} ", path="proto", files="*.proto")))[0]
    yield around(answer, before=2, after=26)
    share = value((yield use("calculate", expression=f"100 * {streaming} / {total}")))
    names = ", ".join(match.text.removeprefix("rpc ") for match in matches(methods))
    return f"{total} methods in {len(listing)} files, {streaming} of them ({share} %) stream: {names}"


def _errors() -> Plan:
    classes = yield use("grep", pattern=r"^class \w+\(\w*Error\)", path="agent_client", files="*.py")
    home = _fullest(matches(classes))
    yield around(home, before=22, after=12)
    name = home.text.removeprefix("class ").split("(")[0]
    mentions = yield use("grep", pattern=rf"\b{name}\b", path="agent_client", files="*.py")
    yield around(_elsewhere(matches(mentions), home.path), before=6, after=16)
    statuses = yield use("grep", pattern=r"StatusCode\.[A-Z_]+", path="runtime", files="*.py")
    given = _fullest(matches(statuses))
    yield around(given, before=4, after=20)
    total, served = match_count(classes), match_count(statuses)
    each = value((yield use("calculate", expression=f"{served} / {total}")))
    return f"{total} errors, most in {home.path}; {served} lines give a status, most in {given.path}: {each} each"


def _settings() -> Plan:
    fields = yield use("grep", pattern=r"^    \w+: .*= setting\(", path="runtime/config.py")
    settings = matches(fields)
    yield around(settings[0], before=8, after=34)
    validators = yield use("grep", pattern=r"@(field|model)_validator", path="runtime/config.py")
    yield around(matches(validators)[-1], before=0, after=16)
    pool = next((match for match in settings if "memory" in match.text or "blocks" in match.text), settings[0])
    name = pool.text.split(":")[0]
    uses = matches((yield use("grep", pattern=rf"\.{name}\b", path="runtime", files="*.py")))
    yield around(_elsewhere(uses, "runtime/config.py"), before=10, after=20)
    length = file_length((yield use("read_file", path="runtime/config.py", first=1, last=12)))
    each = value((yield use("calculate", expression=f"{length} / {match_count(fields)}")))
    return f"{match_count(fields)} settings in {length} lines, {each} lines each; {name} is read by {len(uses)} lines"


def _formats() -> Plan:
    readers = matches((yield use("grep", pattern=r"^def recognises", path="agent_client", files="*.py")))
    named = matches((yield use("grep", pattern=r"^READERS|recognises\(", path="agent_client/traces", files="*.py")))
    yield around(_first(named, "READERS"), before=6, after=24)
    for reader in readers[:3]:
        yield around(reader, before=8, after=20)
    refusals = yield use("grep", pattern=r"raise TraceError", path="agent_client/traces", files="*.py")
    yield around(_fullest(matches(refusals)), before=6, after=12)
    each = value((yield use("calculate", expression=f"{match_count(refusals)} / {len(readers)}")))
    return f"{len(readers)} formats, {match_count(refusals)} refusals, {each} a format"


PACKAGES = ("radix", "runtime", "agent_client")


def _packages() -> Plan:
    listing = yield use("list_files", path=".", pattern="*.py")
    _, total = listing_totals(listing)
    longest = listed(listing)[0]
    yield use("read_file", path=longest[0], first=1, last=24)
    parts = yield tuple(
        Branch(name, f"How large is {name}, how many functions has it, and which file is longest?", _package(name))
        for name in PACKAGES
    )
    lines = _sum(_number(part, "lines") for part in parts)
    functions = _sum(_number(part, "functions") for part in parts)
    tests = yield use("list_files", path="tests", pattern="test_*.py")
    _, test_lines = listing_totals(tests)
    share = value((yield use("calculate", expression=f"100 * {lines} / {total}")))
    mean = value((yield use("calculate", expression=f"{lines} / {functions}")))
    ratio = value((yield use("calculate", expression=f"{test_lines} / {lines}")))
    return f"{lines} of {total} lines ({share} %), {mean} lines a function, {ratio} lines of test for each"


def _package(name: str) -> Plan:
    listing = yield use("list_files", path=name, pattern="*.py")
    files, lines = listing_totals(listing)
    longest, length = listed(listing)[0]
    functions = match_count((yield use("grep", pattern=r"^\s*(async )?def \w+", path=name, files="*.py")))
    return f"{name}: {lines} lines in {files} files, {functions} functions; longest is {longest} with {length} lines"


TASKS: tuple[Task, ...] = (
    Task("api", "Which gRPC methods does the API have, and what share of them stream their answer?", _api),
    Task(
        "eviction",
        "Which eviction policies does the prefix store know, and how much of the radix package is the file that "
        "defines them?",
        _eviction,
    ),
    Task(
        "packages",
        "How is the code spread over the packages radix, runtime and agent_client, and how much of it is tested?",
        _packages,
    ),
    Task("errors", "Which errors can the client raise, and where does each get its gRPC status?", _errors),
    Task("settings", "Which settings does the runtime take, how are they checked, and what sizes the pool?", _settings),
    Task("formats", "Which trace formats does the client read, and how does it tell them apart?", _formats),
)


def _first(found: Iterable[Match], beginning: str) -> Match:
    for match in found:
        if match.text.startswith(beginning):
            return match
    raise PlanFailed(f"no match begins with {beginning!r}")


def _elsewhere(found: list[Match], path: str) -> Match:
    """The first match outside `path`, or the last inside it."""
    return next((match for match in found if match.path != path), found[-1])


def _fullest(found: list[Match]) -> Match:
    """The first match in the file that has the most."""
    path, _ = Counter(match.path for match in found).most_common(1)[0]
    return next(match for match in found if match.path == path)


def _sum(numbers: Iterable[int]) -> str:
    return f"({' + '.join(map(str, numbers))})"


def _number(text: str, unit: str) -> int:
    words = text.replace(",", "").split()
    for number, word in pairwise(words):
        if word.rstrip(";:.") == unit and number.isdigit():
            return int(number)
    raise PlanFailed(f"no number of {unit} in {text[:120]!r}")
