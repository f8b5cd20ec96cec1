"""Words of JSON Schema, and what each says of a single value."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from runtime.grammar.schema_shapes import wrong_word

Schema = dict[str, Any]

KEYWORDS_OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_KNOWN = frozenset(word for words in KEYWORDS_OF_TYPE.values() for word in words) | {
    "type",
    "enum",
    "const",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "unevaluatedProperties",
    "unevaluatedItems",
}
# Null is a value, or no schema.
_SET = frozenset({"const", "enum", "items", "allOf", "anyOf", "oneOf", "$ref", "required", "properties"})
# Text, or one class repeated: what takes no longer than the text is long.
_QUICK = re.compile(r"\^?[\w -]*\$?|\^?(?:\[[^\[\]\\]+\]|\\[dw])[*+]?\$?")
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class SchemaRefused(Exception):
    """A part of a schema that cannot be enforced; `place` is where, as a path."""

    def __init__(self, place: str, value: object, limit: str) -> None:
        super().__init__(f"{place}: {limit}")
        self.place = place
        self.value = value
        self.limit = limit


def known(schema: Schema, place: str) -> Schema:
    """The words that assert something; the others are notes. Raises SchemaRefused for a value of another type."""
    # Programs that write schemas say null of what they do not limit.
    own = {word: value for word, value in schema.items() if word in _KNOWN and (value is not None or word in _SET)}
    wrong = wrong_word(own)
    if wrong is not None:
        raise SchemaRefused(f"{place}/{wrong[0]}", own[wrong[0]], wrong[1])
    for word in ("unevaluatedProperties", "unevaluatedItems"):
        # Nothing is written that no schema speaks of.
        if own.pop(word, None) not in (None, True, False):
            raise SchemaRefused(f"{place}/{word}", schema[word], "only true or false can be enforced")
    return own


def weight(schema: Any) -> int:
    """How much there is to look at in a schema, without what is inside of its parts."""
    if not isinstance(schema, dict):
        return 1
    return 1 + sum(len(value) for value in schema.values() if isinstance(value, (list, dict)))


def kinds(schema: Schema, place: str) -> list[str] | None:
    """The types that a schema names; None where it names none."""
    given = schema.get("type")
    if given is None:
        return None
    found = given if isinstance(given, list) else [given]
    if not all(kind in _TYPES for kind in found):
        raise SchemaRefused(f"{place}/type", given, f"one or more of {', '.join(_TYPES)}")
    return [kind for kind in dict.fromkeys(found) if not (kind == "integer" and "number" in found)]


def kind_of(value: Any) -> str:
    """The type of a JSON value; whole numbers are integers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or (math.isfinite(value) and value == int(value)) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def fits(value: Any, rules: Schema, place: str) -> bool:
    """Whether one value keeps the rules. Raises SchemaRefused for rules about the inside of arrays and objects."""
    kind = kind_of(value)
    wanted = kinds(rules, place)
    if wanted is not None and kind not in wanted and not (kind == "integer" and "number" in wanted):
        return False
    if kind in ("array", "object"):
        inside = [word for word in KEYWORDS_OF_TYPE[kind] if word in rules]
        if inside:
            raise SchemaRefused(f"{place}/{inside[0]}", "beside enum or const", "leave one of the two out")
    if kind == "string":
        least, most = rules.get("minLength", 0), rules.get("maxLength", len(value))
        return least <= len(value) <= most and ("pattern" not in rules or matches(rules["pattern"], value, place))
    if kind in ("integer", "number"):
        return (
            rules.get("minimum", value) <= value <= rules.get("maximum", value)
            and ("exclusiveMinimum" not in rules or rules["exclusiveMinimum"] < value)
            and ("exclusiveMaximum" not in rules or value < rules["exclusiveMaximum"])
            and not ("multipleOf" in rules and value % rules["multipleOf"])
        )
    return True


def matches(pattern: str, text: str, place: str) -> bool:
    """Whether a schema's pattern is in a text. Raises SchemaRefused for one that a stranger could make run for ever."""
    if not _QUICK.fullmatch(pattern):
        raise SchemaRefused(f"{place}/pattern", pattern, "beside given values or names only the simplest are taken")
    return re.search(pattern, text) is not None


def canonical(value: Any) -> str:
    """The same text for the same JSON value."""
    return json.dumps(_whole_numbers(value), sort_keys=True)


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return {name: _whole_numbers(item) for name, item in value.items()} if isinstance(value, dict) else value


def count_of(schema: Schema, keyword: str, place: str) -> int | None:
    """The length or number that a bound asks for; None without one. Raises SchemaRefused with `place` in it."""
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0 or value < 0:
        raise SchemaRefused(f"{place}/{keyword}", value, "must be a whole number from 0")
    return int(value)
