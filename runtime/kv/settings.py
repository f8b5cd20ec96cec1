"""What a user asks of the pool's precision. Loads no torch: the command line checks it first."""

from __future__ import annotations

from dataclasses import dataclass

from radix.kv_bytes import HALVES, PRECISIONS, Half
from runtime.errors import InvalidRequest


@dataclass(frozen=True)
class KVSettings:
    """As the flags of the same names.

    kv: `auto` (the weights' dtype) or a precision, for keys and values alike; keys, values: over it, for one of them.
    sensitive: `auto` (measured), `none`, or layers such as `0,3,keys:10`, which are kept at a higher precision.
    """

    kv: str = "auto"
    keys: str | None = None
    values: str | None = None
    sensitive: str = "auto"

    def check(self) -> None:
        """Raises InvalidRequest for a name or a layer list that cannot be."""
        for field, name in (("kv_dtype", self.kv), ("k_dtype", self.keys), ("v_dtype", self.values)):
            if name is not None:
                check_precision(field, name)
        parse_layers(self.sensitive)


AUTO = KVSettings()


def parse_layers(text: str) -> frozenset[tuple[int, Half]] | None:
    """The (layer, half) pairs of a list such as `0,3,keys:10`; None for `auto`. Raises InvalidRequest."""
    if text == "auto":
        return None
    found: set[tuple[int, Half]] = set()
    for part in [] if text == "none" else text.split(","):
        named, colon, number = part.strip().rpartition(":")
        halves = [half for half in HALVES if not colon or half == named]
        if not number.isdecimal() or not halves:
            wanted = "must be auto, none, or layers such as 0,3,keys:10,values:11"
            raise InvalidRequest("kv_sensitive_layers", text, wanted)
        found |= {(int(number), half) for half in halves}
    return frozenset(found)


def check_precision(field: str, name: str) -> None:
    """Raises InvalidRequest for a name that no precision has; `auto` is one."""
    if name != "auto" and name not in PRECISIONS:
        raise InvalidRequest(field, name, f"must be one of auto, {', '.join(PRECISIONS)}")
