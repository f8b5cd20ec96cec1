"""What a runtime keeps in Redis: key names and the shape of every value, for the writer and for all readers.

docs/metadata.md is this file as a table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

SCHEMA_VERSION = 1
PREFIX = f"radixloop:v{SCHEMA_VERSION}:"

# A set of runtime ids. A member may be dead: only its registration tells, since that has the lease.
RUNTIMES_KEY = PREFIX + "runtimes"

EVENTS_KEPT = 10_000

_RUNTIME_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class BadRuntimeId(ValueError):
    """A runtime id holds a character that Redis keys here may not hold, or is too long."""

    def __init__(self, runtime_id: str) -> None:
        super().__init__(
            f"runtime_id is {runtime_id!r}: it needs 1 to 128 characters, letters, digits, '.', '_', ':' and '-' only"
        )


@dataclass(frozen=True, slots=True)
class RuntimeKeys:
    """Every key of one runtime. The braces keep them on one shard of a Redis cluster.

    Attributes:
        registration: hash; alive as long as it exists.
        stats: hash of numbers, pool and counters.
        nodes: hash, node id -> JSON (`NodeRecord`).
        sessions: hash, session id -> JSON.
        events: stream, newest EVENTS_KEPT or a little more.
        scratch: hash, where a whole tree is written before it takes the place of `nodes`.
    """

    registration: str
    stats: str
    nodes: str
    sessions: str
    events: str
    scratch: str

    @classmethod
    def of(cls, runtime_id: str, incarnation: str = "") -> RuntimeKeys:
        """Keys of a runtime; readers need no incarnation. Raises BadRuntimeId."""
        if not _RUNTIME_ID.fullmatch(runtime_id):
            raise BadRuntimeId(runtime_id)
        base = _base(runtime_id)
        return cls(
            registration=registration_key(runtime_id),
            stats=base + "stats",
            nodes=base + "nodes",
            sessions=base + "sessions",
            events=base + "events",
            scratch=base + "nodes." + incarnation,
        )

    def all(self) -> tuple[str, ...]:
        """The names, registration first."""
        return (self.registration, self.stats, self.nodes, self.sessions, self.events, self.scratch)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of a runtime's tree as Redis holds it.

    Attributes:
        parent: 0 for a node right below a root.
        salt: tenant part of the namespace, None for none.
        adapter: adapter part of the namespace, None for none.
        start: position of the run's first token.
        tokens: length of the run.
        last_used: Unix time, seconds.
        holders: open sequences that read to somewhere in this run.
        head: the run's first tokens, decoded.
    """

    id: int
    parent: int
    salt: str | None
    adapter: str | None
    start: int
    tokens: int
    blocks: int
    hits: int
    last_used: float
    holders: int
    children: int
    head: str

    @property
    def namespace(self) -> str:
        return namespace_label(self.salt, self.adapter)

    def to_json(self) -> str:
        """The hash value; the id is its field."""
        values = asdict(self)
        del values["id"]
        values["last_used"] = round(self.last_used, 3)
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, node_id: str, text: str) -> NodeRecord:
        """Inverse of `to_json`. Fields of later versions are passed over. Raises ValueError, KeyError or TypeError."""
        values: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(cls)} - {"id"}
        return cls(id=int(node_id), **{name: values[name] for name in known})


def registration_key(runtime_id: str) -> str:
    """The key that exists as long as the runtime's lease runs."""
    return _base(runtime_id) + "registration"


def _base(runtime_id: str) -> str:
    return f"{PREFIX}{{{runtime_id}}}:"


def namespace_label(salt: str | None, adapter: str | None) -> str:
    """How a namespace is shown and chosen on a command line: "default", "salt=x", "adapter=y", "salt=x,adapter=y"."""
    parts = [f"{name}={value}" for name, value in (("salt", salt), ("adapter", adapter)) if value is not None]
    return ",".join(parts) or "default"


def flat(values: Mapping[str, object]) -> dict[str, str | int | float]:
    """Hash fields that `redis-cli` shows legibly: booleans as yes/no, lists with spaces, None left out."""
    shown: dict[str, str | int | float] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            shown[name] = "yes" if value else "no"
        elif isinstance(value, str | int | float):
            shown[name] = value
        elif isinstance(value, tuple | list):
            shown[name] = " ".join(str(item) for item in value)
        elif value is not None:
            shown[name] = str(value)
    return shown
