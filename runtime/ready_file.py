"""Tells scripts that a runtime serves, and where."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from runtime.settings import BadConfig


@dataclass(frozen=True)
class Ready:
    """Where a runtime answers. `target` is what a gRPC client connects to; None stands for what is off."""

    target: str
    port: int
    metrics_port: int | None
    metrics_url: str | None
    redis_url: str | None
    runtime_id: str
    model: str
    pid: int
    kv_events_endpoint: str | None = None
    kv_events_replay: str | None = None
    tls: bool = False


def write_ready_file(path: Path, ready: Ready) -> None:
    """Write `ready` as JSON; a reader sees the whole file or none. Raises BadConfig."""
    part = path.with_name(f".{path.name}.{ready.pid}")
    try:
        part.write_text(json.dumps(asdict(ready), indent=2) + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise BadConfig("ready_file", f"{path}: {error.strerror}") from None
