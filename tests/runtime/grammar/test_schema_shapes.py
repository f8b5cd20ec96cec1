"""Schemas that are none: of whatever types their words are, they are refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest

from runtime.errors import InvalidRequest
from runtime.grammar.json_schema import prepared
from runtime.grammar.schema_parts import _KNOWN

WORDS = sorted(_KNOWN | {"$defs", "not", "$id"})
VALUES: list[Any] = [
    *("object", "string", "integer", "array", "null", "#", "#/$defs/a", "#/properties/a", "(", "^[a-z]+$", "date", ""),
    *(True, False, None, 0, -1, 1.5, 1e308, 10**30, float("inf")),
    *([], {}, [None], ["a"], ["string", "null"], [1, "a", None, {"b": 1}, [2]]),
]


def any_value(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if kind < 0.45 or depth > 4:
        return chance.choice(VALUES)
    if kind < 0.75:
        return any_schema(chance, depth + 1)
    if kind < 0.9:
        return [any_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice("abc"): any_value(chance, depth + 1) for _ in range(chance.randrange(3))}


def any_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    return {word: any_value(chance, depth) for word in chance.sample(WORDS, chance.randrange(1, 5))}


def test_nothing_but_a_refusal_comes_of_a_schema_of_any_types() -> None:
    taken = 0
    for seed in range(6000):
        try:
            prepared("json_schema", any_schema(random.Random(seed)))
            taken += 1
        except InvalidRequest:
            pass
    assert 0 < taken < 3000


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "format": {}}, "json_schema/format is {}: must be text"),
        ({"properties": {"a": {"$ref": {}}}}, "json_schema/properties/a/$ref is {}: must be text"),
        ({"type": "object", "required": [["a"]]}, "a list of names"),
        ({"type": "object", "required": True}, "a list of names"),
        ({"enum": ["a"], "minLength": "1"}, "json_schema/minLength is '1': must be a number"),
        ({"enum": [4], "multipleOf": 0}, "json_schema/multipleOf is 0: must be a number above 0"),
        ({"const": 4, "maximum": "9"}, "json_schema/maximum is '9'"),
        ({"const": "a", "pattern": 5}, "must be a regular expression"),
        ({"allOf": [{"properties": []}, {"properties": {"a": {}}}]}, "an object of schemas"),
        ({"oneOf": [{"enum": 5}, {"type": "null"}]}, "a list of values"),
    ],
)
def test_a_word_of_another_type_is_named(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepared("json_schema", schema)
    assert says in str(caught.value)


def test_null_limits_nothing() -> None:
    assert prepared("s", {"type": "string", "maxLength": None, "pattern": None}) == {"type": "string"}
    assert prepared("s", {"enum": [4], "minimum": None}) == {"enum": [4]}
