"""Whether two schemas have no value in common, as far as that is plain to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.grammar.schema_parts import KEYWORDS_OF_TYPE, canonical, fits, kinds, known

_DEPTH = 4


def disjoint(left: Any, right: Any, follow: Callable[[Any], Any], depth: int = 0) -> bool:
    """True where no value can be of both; False says nothing. `follow` replaces a reference by what it stands for."""
    left, right = follow(left), follow(right)
    if left is False or right is False:
        return True
    if depth > _DEPTH or not isinstance(left, dict) or not isinstance(right, dict):
        return False
    left, right = known(left, ""), known(right, "")
    listed = [("enum" in side or "const" in side) for side in (left, right)]
    if all(listed):
        return not {canonical(value) for value in _listed(left)} & {canonical(value) for value in _listed(right)}
    if any(listed):
        values, schema = (left, right) if listed[0] else (right, left)
        return not any(_may_be(value, schema) for value in _listed(values))
    one, other = _kinds(left), _kinds(right)
    if one is None or other is None:
        return False
    common = one & other
    if not common:
        return True
    if common <= {"integer", "number"}:
        return _apart(left, right)
    return common == {"object"} and _tell_apart(left, right, follow, depth)


def _tell_apart(left: dict[str, Any], right: dict[str, Any], follow: Callable[[Any], Any], depth: int) -> bool:
    """Whether a property that both must have differs, or one must have what the other may not."""
    ours, theirs = left.get("properties", {}), right.get("properties", {})
    for name in {*left.get("required", ()), *right.get("required", ())}:
        mine = ours.get(name, left.get("additionalProperties", True))
        yours = theirs.get(name, right.get("additionalProperties", True))
        if disjoint(mine, yours, follow, depth + 1):
            return True
    return False


def _apart(left: dict[str, Any], right: dict[str, Any]) -> bool:
    low = max((side["minimum"] for side in (left, right) if "minimum" in side), default=None)
    high = min((side["maximum"] for side in (left, right) if "maximum" in side), default=None)
    return low is not None and high is not None and low > high


def _kinds(schema: dict[str, Any]) -> set[str] | None:
    found = kinds(schema, "")
    if found is None:
        found = [kind for kind, words in KEYWORDS_OF_TYPE.items() if any(word in schema for word in words)]
        # Without a type the words of one bind that one alone.
        return None if found != ["object"] or "required" not in schema else {"object"}
    return {*found, "integer"} if "number" in found else set(found)


def _listed(schema: dict[str, Any]) -> list[Any]:
    return list(schema["enum"]) if "enum" in schema else [schema["const"]]


def _may_be(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, (dict, list)):
        return kinds(schema, "") is None or fits(value, {"type": schema["type"]}, "")
    return any(word in schema for word in ("anyOf", "oneOf", "allOf", "$ref")) or fits(value, schema, "")
