"""What was measured of a model's layers, kept beside the converted weights: the next start has it at once.

It also keeps the choice the same from one start to the next, on which the fingerprint of stored blocks depends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from radix.kv_bytes import HALVES
from runtime.kv import sensitivity
from runtime.kv.precision import KVFormat
from runtime.kv.sensitivity import Place
from runtime.models.weights_cache import cache_root, scratch_folder

log = logging.getLogger(__name__)


def measured_once(digest: str, format_: KVFormat, measure: Callable[[], dict[Place, float]]) -> dict[Place, float]:
    """What `measure` returns, or what it returned when it was first asked for weights of this digest at this format.

    An empty digest (weights that nothing names) is measured every time; so is everything where the cache folder cannot
    be written.
    """
    path = _path(digest, format_)
    found = _read(path) if digest else None
    if found is not None:
        return found
    began = time.monotonic()
    costs = measure()
    log.info("measured what %s KV costs in each layer, in %.1f s, once", format_.name, time.monotonic() - began)
    if digest:
        try:
            _write(path, costs)
        except OSError as error:
            log.info("%s cannot be written (%s): the next start measures again", path, error)
    return costs


def _path(digest: str, format_: KVFormat) -> Path:
    # The sample, the packings and the way of measuring are in these two sources.
    sources = (Path(sensitivity.__file__), Path(sensitivity.__file__).with_name("packing.py"))
    key = hashlib.sha256(digest.encode() + b"\0" + format_.digest_text.encode())
    for source in sources:
        key.update(b"\0" + source.read_bytes())
    return cache_root() / "kv-sensitivity" / f"{key.hexdigest()[:32]}.json"


def _read(path: Path) -> dict[Place, float] | None:
    try:
        rows = json.loads(path.read_text())
        halves = dict(zip(HALVES, HALVES, strict=True))
        return {(int(layer), halves[half]): float(cost) for layer, half, cost in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, costs: dict[Place, float]) -> None:
    with scratch_folder(path.parent) as scratch:
        part = scratch / path.name
        part.write_text(json.dumps([[layer, half, cost] for (layer, half), cost in costs.items()]))
        part.replace(path)
