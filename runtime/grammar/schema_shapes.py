"""Of what type the value of each word of JSON Schema must be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _bound(value: Any) -> bool:
    # In draft 4 true and false said whether the other bound is outside.
    return isinstance(value, bool) or _number(value)


def _step(value: Any) -> bool:
    return _number(value) and value > 0


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


_Rule = tuple[Callable[[Any], bool], str]
_NUMBER: _Rule = (_number, "must be a number")
_SCHEMAS: _Rule = (_list, "a list of schemas")
_BY_NAME: _Rule = (_object, "an object of schemas")
_RULES: dict[str, _Rule] = {
    "$ref": (_text, "must be text"),
    "pattern": (_text, "must be a regular expression"),
    "format": (_text, "must be text"),
    "required": (_texts, "a list of names"),
    "enum": (_list, "a list of values"),
    "multipleOf": (_step, "must be a number above 0"),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_bound, "must be a number")),
    **dict.fromkeys(("minimum", "maximum", "minLength", "maxLength"), _NUMBER),
    **dict.fromkeys(("minItems", "maxItems", "minProperties", "maxProperties"), _NUMBER),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties"), _BY_NAME),
}


def wrong_word(schema: dict[str, Any]) -> tuple[str, str] | None:
    """The first word of a schema whose value has no type that it may have, and what it must be; None where all have."""
    for word, value in schema.items():
        rule = _RULES.get(word)
        if rule is not None and not rule[0](value):
            return word, rule[1]
    return None
