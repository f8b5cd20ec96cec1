"""Schemas as they are compiled: what chance writes under them validates, and what cannot be enforced is refused."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from jsonschema.validators import Draft202012Validator, validator_for

from runtime.errors import InvalidRequest
from runtime.grammar import json_schema
from runtime.grammar.constraint import constraint
from runtime.grammar.json_schema import prepared
from tests.runtime.grammar.schemas import SCHEMAS
from tests.runtime.grammar.walks import compiled, walk

INT, TEXT, FLAG = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
A_INT = {"type": "object", "properties": {"a": INT}, "required": ["a"]}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


ENFORCED: dict[str, Any] = {
    "anything": {},
    "text": TEXT,
    "bounded text": {"type": "string", "minLength": 2, "maxLength": 4},
    "long text": {"type": "string", "minLength": 200, "maxLength": 210},
    "text without a type": {"maxLength": 3},
    "a pattern": {"type": "string", "pattern": "^[a-z]{2,3}$"},
    "a pattern in the middle": {"type": "string", "pattern": "ab+"},
    "a class and a length": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    "classes of characters that JSON escapes": {"type": "string", "pattern": '^["\\\\a\\x00-\\x40]{3}$'},
    "a choice of loops": {"type": "string", "pattern": "^[0-9](x[0-9]{1,6})?(-(a+b){1,2})*Z$"},
    "numbers": {"type": "number", "minimum": -180, "exclusiveMaximum": 180},
    "numbers without a type": {"minimum": 3},
    "whole numbers": {"type": "integer", "exclusiveMinimum": 0, "maximum": 7.5},
    "multiples": {"type": "integer", "multipleOf": 5, "minimum": 3, "maximum": 33},
    "bounds of draft 4": {"type": "integer", "minimum": 1, "maximum": 5, "exclusiveMinimum": True},
    "several types": {"type": ["string", "integer", "null"], "maxLength": 2, "minimum": 3},
    "values": {"enum": ["a", 1, None, {"x": [1]}, 'é"\n']},
    "values of a type": {"type": "string", "enum": ["a", "bbb", 1], "maxLength": 2},
    "one value": {"const": {"a": [1, 2.5]}},
    "lists": {"type": "array", "items": INT, "minItems": 1, "maxItems": 3},
    "lists of anything": {"type": "array", "minItems": 2, "maxItems": 3},
    "tuples": {"type": "array", "prefixItems": [INT, TEXT], "items": False, "minItems": 1},
    "open tuples": {"type": "array", "prefixItems": [INT, TEXT], "items": FLAG, "minItems": 3, "maxItems": 4},
    "objects": {"type": "object", "properties": {"a": INT, "b": TEXT}, "required": ["b"]},
    "objects of anything": {"type": "object"},
    "names of free choice": {"type": "object", "properties": {"a": FLAG}, "additionalProperties": INT},
    "names of a pattern": {"type": "object", "patternProperties": {"^x[0-9]$": INT}, "additionalProperties": False},
    "names of a length": {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": INT},
    "a required name that is not listed": {**A_INT, "required": ["a", "zz"], "additionalProperties": FLAG},
    "counted names": {"type": "object", "properties": {"a": INT, "b": INT, "c": INT}, "minProperties": 2},
    "no type": {"properties": {"a": INT}, "required": ["a"]},
    "any of": {"anyOf": [INT, TEXT, {"anyOf": [{"type": "null"}, FLAG]}]},
    "any of beside others": {**A_INT, "anyOf": [{"required": ["b"], "properties": {"b": INT}}, closed(a=INT, c=FLAG)]},
    "one of": {"oneOf": [closed(k={"const": "a"}, v=INT), closed(k={"const": "b"}), TEXT, {"type": "array"}]},
    "one of closed ones": {"oneOf": [closed(a=INT), closed(a=INT, b=INT)]},
    "one of apart": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"type": "integer", "minimum": 6}]},
    "all of": {"allOf": [A_INT, {"type": "object", "properties": {"b": TEXT}, "required": ["b"]}]},
    "all of numbers": {"allOf": [{"type": "number", "minimum": 3}, {"type": "integer", "maximum": 5}]},
    "all of with a closed one": {"allOf": [closed(a=INT), {"properties": {"a": {"maximum": 3}, "b": TEXT}}]},
    "a reference": {"$ref": "#/$defs/a b~1c", "$defs": {"a b/c": {"$ref": "#/$defs/x"}, "x": INT}},
    "a reference beside others": {"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": INT}},
    "recursion": {
        "$ref": "#/$defs/n",
        "$defs": {"n": closed(v=FLAG, next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})},
    },
    "recursion at the root": closed(c={"type": "array", "items": {"$ref": "#"}, "maxItems": 1}),
    "notes": {"type": "integer", "title": "x", "description": "y", "default": 1, "x-any": {}, "deprecated": True},
    "a date": {"type": "string", "format": "date"},
    "an address": {"type": "string", "format": "ipv4"},
    "a time stamp": {"type": "string", "format": "date-time"},
    "an identifier": {"type": "string", "format": "uuid"},
    "a format that nobody knows": {"type": "string", "format": "colour"},
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"not": INT}, "/not"),
    ({"if": {}, "then": {}}, "/if"),
    ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
    ({"type": "array", "contains": INT}, "/contains"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "/dependentRequired"),
    ({"type": "number", "multipleOf": 0.01}, "/multipleOf"),
    (closed(a={"type": "string", "pattern": "^(?=a)b$"}), "/properties/a/pattern"),
    ({"type": "string", "pattern": '^"a"$'}, "/pattern"),
    ({"type": "string", "pattern": "^a\\\\b$"}, "/pattern"),
    ({"type": "string", "pattern": "^\\t$"}, "/pattern"),
    ({"type": "string", "pattern": "("}, "/pattern"),
    ({"type": "string", "pattern": "^(ab)+$", "maxLength": 5}, "/pattern"),
    ({"enum": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"], "pattern": "^(a+)+$"}, "/pattern"),
    ({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, "/oneOf"),
    ({"oneOf": [closed(a=INT), {"type": "object", "properties": {"a": INT, "b": INT}}]}, "/oneOf"),
    ({"$ref": "http://example.org/schema"}, "/$ref"),
    ({"$ref": "#/$defs/none"}, "/$ref"),
    ({"$ref": "#place", "$defs": {"a": {"$anchor": "place"}}}, "/$ref"),
    ({"allOf": [TEXT, INT]}, "/type"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ""),
    ({"enum": []}, ""),
    ({"type": "string", "enum": [1]}, ""),
    ({"type": "thing"}, "/type"),
    (closed(a=False), "/properties/a"),
    ({"type": "object", "patternProperties": {"^a": INT, "^b": INT}}, "/patternProperties"),
    ({"type": "object", "properties": {"ab": INT}, "patternProperties": {"^a": INT}}, "/patternProperties"),
    ({"type": "object", "additionalProperties": INT, "minProperties": 2}, "/minProperties"),
    ({"type": "string", "maxLength": -1}, "/maxLength"),
    ({"type": "object", "properties": {"a": 3}}, "/properties/a"),
    ({"allOf": [{"anyOf": [INT, TEXT]}, {"anyOf": [FLAG, TEXT]}]}, ""),
]


@pytest.mark.parametrize("schema", ENFORCED.values(), ids=ENFORCED)
def test_what_chance_writes_validates(schema: dict[str, Any]) -> None:
    _check(schema, 40)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_chance_writes_under_real_schemas_validates(name: str) -> None:
    _check(SCHEMAS[name][1], 10)


def _check(schema: dict[str, Any], texts: int) -> None:
    grammar = compiled(constraint("json_schema", json.dumps(schema)).spec)
    # In draft 4, exclusiveMinimum is a boolean.
    checked = {**schema, "exclusiveMinimum": schema["minimum"]} if schema.get("exclusiveMinimum") is True else schema
    validator = validator_for(checked, default=Draft202012Validator)(
        checked, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    random_ = random.Random(3)
    for _ in range(texts):
        # As the text of a reply is decoded, and as JSON may be: one line without control characters.
        text = walk(grammar, random_).decode()
        assert "\n" not in text
        assert not list(validator.iter_errors(json.loads(text))), text


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda value: None if isinstance(value, dict) else value)
def test_what_cannot_be_enforced_is_refused_by_name(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        constraint("json_schema", json.dumps(schema), "response.schema")
    assert caught.value.field.startswith("response.schema" + place)


INTS = {f"p{i}": {"type": "integer"} for i in range(1500)}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"properties": INTS}, "b": {"required": list(INTS)}}, "allOf": ["a", "b"] * 800},
        {"$defs": {"a": {"enum": list(range(9000))}, "b": {"enum": list(range(1, 9000))}}, "allOf": ["a", "b"] * 800},
        {"oneOf": [{"enum": [f"{i} {j}" for j in range(100)]} for i in range(190)]},
        {
            "$defs": {"d0": {"properties": INTS}}
            | {
                f"d{i}": {"allOf": [f"d{i - 1}", {"properties": {f"y{i}": INT}, "$ref": f"#/$defs/d{i - 1}"}]}
                for i in range(1, 9)
            },
            "allOf": ["d8", {"required": ["a"]}],
        },
    ],
)
def test_parts_that_overlap_are_merged_in_bounded_work(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "MAX_STEPS", 100_000)

    def spelt(value: Any) -> Any:
        """With references where names of definitions stand in `allOf`."""
        if isinstance(value, dict):
            parts = {key: spelt(inner) for key, inner in value.items()}
            if "allOf" in parts:
                parts["allOf"] = [{"$ref": f"#/$defs/{p}"} if isinstance(p, str) else p for p in parts["allOf"]]
            return parts
        return [spelt(item) for item in value] if isinstance(value, list) else value

    with pytest.raises(InvalidRequest, match="at most 100000 steps to merge"):
        prepared("json_schema", spelt(schema))


def test_a_schema_that_multiplies_is_refused_in_bounded_time() -> None:
    doubling: dict[str, Any] = {"type": "integer"}
    for rank in range(40):
        doubling = {"anyOf": [doubling, doubling], "description": f"{rank}"}
    with pytest.raises(InvalidRequest, match=r"at most 20000 parts|levels"):
        prepared("json_schema", doubling)


def _random_pattern(random_: random.Random, depth: int) -> str:
    def atom() -> str:
        kind = random_.random()
        if kind < 0.5 or not depth:
            return random_.choice(["a", "b", "x", "[0-9]", "[a-c]", r"\d", r"\."])
        return random_.choice(["(", "(?:"]) + _random_pattern(random_, depth - 1) + ")"

    def sequence() -> str:
        parts = []
        for _ in range(random_.randint(1, 3)):
            parts.append(atom() + random_.choice(["", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,2}", "{1,}"]))
        return "".join(parts)

    return "|".join(sequence() for _ in range(random_.choice([1, 1, 2])))


def test_patterns_mean_what_they_say() -> None:
    random_ = random.Random(2)
    for _ in range(150):
        pattern = f"^(?:{_random_pattern(random_, 2)})$"
        grammar = compiled(constraint("json_schema", json.dumps({"type": "string", "pattern": pattern})).spec)
        for _ in range(8):
            text = json.loads(walk(grammar, random_, longest=10_000))
            assert re.search(pattern, text), (pattern, text)
