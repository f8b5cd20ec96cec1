"""Finds out which format a trace has, and reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from . import magagent, openai_messages, recorded, swe_agent
from .model import Session, Trace, TraceError, unique_id
from .source import Source

# In this order: the first that recognises a file's first record reads it. A new format is a module with NAME,
# recognises(first) and read(source), named here.
READERS: tuple[ModuleType, ...] = (recorded, swe_agent, magagent, openai_messages)
FORMATS = tuple(reader.NAME for reader in READERS)


def read_trace(path: str | Path, format: str | None = None) -> Trace:
    """Reads a file, or every file of a folder. `format` (one of FORMATS) skips the detection.

    Raises TraceError naming the file and line of what cannot be read.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise TraceError(f"format is {format!r}: known are {', '.join(FORMATS)}")
    if not path.is_dir():
        return _read_file(path, format)
    files = sorted(file for file in path.iterdir() if file.is_file() and _may_be_trace(file))
    if not files:
        raise TraceError(f"{path}: no .traj, .json or .jsonl file in this folder (gzipped or not)")
    traces = [_read_file(file, format) for file in files]
    taken: set[str] = set()
    sessions = tuple(session for trace in traces for session in _renamed(trace.sessions, taken))
    return Trace(traces[0].format, sessions, tuple(note for trace in traces for note in trace.notes))


def _read_file(path: Path, format: str | None) -> Trace:
    source = Source(path)
    first = source.first()
    for reader in READERS:
        if format == reader.NAME or (format is None and reader.recognises(first.value)):
            trace: Trace = reader.read(source)
            if not trace.sessions:
                raise TraceError(f"{path}: no calls in it")
            return trace
    raise TraceError(f"{first.where}: {_why_unknown(first.value)}")


def _why_unknown(first: Any) -> str:
    if isinstance(first, dict) and ("hash_ids" in first or "requests" in first):
        return (
            "this trace holds hash ids instead of text, so no model can read it; `radix simulate` replays such traces"
        )
    return f"no known trace format starts like this; known are {', '.join(FORMATS)}"


def _may_be_trace(file: Path) -> bool:
    name = file.name.removesuffix(".gz")
    return name.endswith((".traj", ".jsonl", ".json"))


def _renamed(sessions: tuple[Session, ...], taken: set[str]) -> list[Session]:
    """The sessions of one file under names that no other file of the folder uses."""
    names = {session.id: unique_id(session.id, taken) for session in sessions}
    return [
        replace(session, id=names[session.id], parent=parent and replace(parent, session=names[parent.session]))
        for session in sessions
        for parent in [session.parent]
    ]
