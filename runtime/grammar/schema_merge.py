"""Several schemas for one value, as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.grammar.schema_parts import Schema, canonical, kinds, known, weight

_DEPTH = 32
_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


class CannotMerge(Exception):
    """Two schemas whose conjunction is no schema of the supported kind; the text says what stands in the way."""


def merged(left: Any, right: Any, resolve: Callable[[str], Any], spend: Callable[[int], None], depth: int = 0) -> Any:
    """A schema for the values that both describe. Raises CannotMerge.

    `resolve` finds what a reference stands for; `spend` is told of the work, and raises where it is too much.
    """
    spend(weight(left) + weight(right))
    if depth > _DEPTH:
        raise CannotMerge("references that lead to themselves")
    if left is True or right is True:
        return right if left is True else left
    if left is False or right is False:
        return False
    if not isinstance(left, dict) or not isinstance(right, dict):
        raise CannotMerge("something that is no schema")
    left, right = known(left, ""), known(right, "")
    if not left or not right or left == right:
        return left or right

    def both(one: Any, other: Any) -> Any:
        return merged(one, other, resolve, spend, depth + 1)

    for one, other in ((left, right), (right, left)):
        if "$ref" in one:
            rest = {word: value for word, value in one.items() if word != "$ref"}
            return both(both(resolve(one["$ref"]), rest or True), other)
        if "allOf" in one:
            whole: Any = {word: value for word, value in one.items() if word != "allOf"} or True
            for part in one["allOf"]:
                whole = both(whole, part)
            return both(whole, other)
    result: Schema = {**left, **right}
    for word in left.keys() & right.keys():
        if left[word] != right[word]:
            result[word] = _together(word, left, right, both)
    _merge_objects(left, right, result, both)
    return result


def _together(word: str, left: Schema, right: Schema, both: Callable[[Any, Any], Any]) -> Any:
    one, other = left[word], right[word]
    if word == "type":
        return _types(left, right)
    if word in _LARGEST:
        return max(one, other)
    if word in _SMALLEST:
        return min(one, other)
    if word == "enum":
        also = {canonical(value) for value in other}
        return [value for value in one if canonical(value) in also]
    if word == "required":
        return list(dict.fromkeys([*one, *other]))
    if word in ("properties", "additionalProperties"):
        # `_merge_objects` does these.
        return one
    if word in ("items", "propertyNames"):
        return both(one, other)
    if word == "uniqueItems":
        return bool(one or other)
    if word == "format":
        return one
    raise CannotMerge(f"two times {word}")


def _types(left: Schema, right: Schema) -> list[str]:
    one, other = kinds(left, "") or [], kinds(right, "") or []
    found = [kind for kind in one if kind in other]
    # Integers are numbers.
    found += [
        "integer"
        for some, rest in ((one, other), (other, one))
        if "integer" in some and "number" in rest and "integer" not in rest
    ]
    return found


def _merge_objects(left: Schema, right: Schema, result: Schema, both: Callable[[Any, Any], Any]) -> None:
    if "properties" not in result:
        if "additionalProperties" in left and "additionalProperties" in right:
            result["additionalProperties"] = both(left["additionalProperties"], right["additionalProperties"])
        return
    ours, theirs = left.get("properties", {}), right.get("properties", {})
    properties: Schema = {}
    for name in {**ours, **theirs}:
        # A name that one side does not list falls under what it says of others.
        properties[name] = both(_of_name(left, ours, name), _of_name(right, theirs, name))
    result["properties"] = properties
    others = [side["additionalProperties"] for side in (left, right) if "additionalProperties" in side]
    if others:
        result["additionalProperties"] = others[0] if len(others) == 1 else both(others[0], others[1])


def _of_name(side: Schema, properties: Schema, name: str) -> Any:
    if name in properties:
        return properties[name]
    if "patternProperties" in side:
        raise CannotMerge("patternProperties beside the properties of another schema")
    return side.get("additionalProperties", True)
