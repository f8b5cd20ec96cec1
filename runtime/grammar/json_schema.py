"""JSON Schemas in the part of the language that the grammar library enforces to the letter.

The library passes over keywords that it does not know, and over some combinations of those that it does: its output
would not always validate. So a schema is restated here before it is compiled, for the same documents or fewer; and what
cannot be restated is refused by name. What is no assertion (title, default, format …) is dropped, but for the formats
that the library knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from runtime.errors import InvalidRequest
from runtime.grammar.schema_disjoint import disjoint
from runtime.grammar.schema_merge import CannotMerge, merged
from runtime.grammar.schema_parts import (
    KEYWORDS_OF_TYPE,
    Schema,
    SchemaRefused,
    canonical,
    count_of,
    fits,
    kinds,
    known,
    matches,
    weight,
)
from runtime.grammar.schema_strings import string_rules

MAX_NODES = 20_000
# Of what is looked at to merge schemas and to tell them apart: names, values and references, each time anew.
MAX_STEPS = 1_000_000
MAX_DEPTH = 64
_REFUSED = (
    "not",
    "if",
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
)
_APPLY = ("$ref", "allOf", "anyOf", "oneOf")


@dataclass
class Effort:
    """What was looked at so far, in one schema or in several of one request."""

    nodes: int = 0
    steps: int = 0


def prepared(field: str, schema: dict[str, Any], effort: Effort | None = None) -> Schema:
    """The schema as it is compiled. Raises InvalidRequest naming the place in it, within bounded time.

    `effort` bounds the time of several together.
    """
    try:
        return _Preparation(schema, effort or Effort()).run()
    except SchemaRefused as error:
        raise InvalidRequest(f"{field}{error.place}", error.value, error.limit) from None
    except RecursionError:
        raise InvalidRequest(field, "nested deeper", f"at most {MAX_DEPTH} levels") from None


class _Preparation:
    def __init__(self, root: dict[str, Any], effort: Effort) -> None:
        self._root = root
        self._effort = effort
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, Any]] = []

    def run(self) -> Schema:
        top = self._walk(self._root, "", 0)
        definitions: dict[str, Schema] = {}
        while self._waiting:
            pointer, target = self._waiting.pop()
            definitions[self._names[pointer]] = self._walk(target, f" {pointer}", 0)
        return {**top, "$defs": definitions} if definitions else top

    def _walk(self, schema: Any, place: str, depth: int) -> Schema:
        self._effort.nodes += 1
        if self._effort.nodes > MAX_NODES:
            most = f"at most {MAX_NODES} parts in the schemas of a request, with the alternatives multiplied out"
            raise SchemaRefused("", "larger", most)
        if depth > MAX_DEPTH:
            raise SchemaRefused(place, "nested deeper", f"at most {MAX_DEPTH} levels")
        if schema is True:
            return {}
        if schema is False:
            raise SchemaRefused(place, False, "no value can be written here")
        if not isinstance(schema, dict):
            raise SchemaRefused(place, schema, "a schema is an object or a boolean")
        for keyword in _REFUSED:
            if keyword in schema:
                raise SchemaRefused(f"{place}/{keyword}", schema[keyword], "this keyword cannot be enforced")
        if place and "$id" in schema:
            raise SchemaRefused(f"{place}/$id", schema["$id"], "only the whole schema may have an id")
        own = known(schema, place)
        if not any(keyword in own for keyword in _APPLY):
            return self._plain(own, place, depth)
        if "$ref" in own and len(own) == 1:
            return {"$ref": self._reference(own["$ref"], place)}
        return self._combined(own, place, depth)

    def _spend(self, steps: int) -> None:
        self._effort.steps += steps
        if self._effort.steps > MAX_STEPS:
            raise SchemaRefused(
                "", "of parts that refer to one another or overlap", f"at most {MAX_STEPS} steps to merge"
            )

    def _combined(self, own: Schema, place: str, depth: int) -> Schema:
        """References with company, allOf, anyOf and oneOf, each multiplied out with what stands beside it."""
        parts = [{key: value for key, value in own.items() if key not in _APPLY}]
        if "$ref" in own:
            parts.append(self._resolved(own["$ref"], place))
        parts += self._list(own, "allOf", place)
        whole: Any = parts[0]
        for part in parts[1:]:
            whole = self._merge(whole, part, place)
        branches: list[Any] = []
        for keyword in ("anyOf", "oneOf"):
            if keyword not in own:
                continue
            if branches:
                raise SchemaRefused(f"{place}/{keyword}", "set", "not beside anyOf")
            branches = self._list(own, keyword, place)
            if keyword == "oneOf":
                self._check_disjoint(branches, f"{place}/oneOf")
        if not branches:
            return self._walk(whole, place, depth + 1)
        if not isinstance(whole, dict) or any(keyword in whole for keyword in _APPLY):
            raise SchemaRefused(place, "anyOf beside a reference to another", "cannot be restated as one choice")
        walked = []
        for rank, branch in enumerate(branches):
            spot = f"{place}/anyOf[{rank}]"
            if branch is not False:
                walked.append(self._walk(self._merge(whole, branch, spot) if whole else branch, spot, depth + 1))
        if not walked:
            raise SchemaRefused(place, "anyOf", "no value can be written here")
        return {"anyOf": walked} if len(walked) > 1 else walked[0]

    def _merge(self, left: Any, right: Any, place: str) -> Any:
        try:
            return merged(left, right, lambda ref: self._resolved(ref, place), self._spend)
        except CannotMerge as error:
            raise SchemaRefused(place, str(error), "several schemas for one value must be one to state") from None

    def _list(self, own: Schema, keyword: str, place: str) -> list[Any]:
        found = own.get(keyword, [])
        if not isinstance(found, list) or (keyword in own and not found):
            raise SchemaRefused(f"{place}/{keyword}", found, "a list of schemas")
        return found

    def _check_disjoint(self, branches: list[Any], place: str) -> None:
        whole = [self._followed(branch, place) for branch in branches]
        for rank, left in enumerate(whole):
            for other in range(rank + 1, len(whole)):
                self._effort.nodes += 1
                if not disjoint(left, whole[other], lambda part: self._followed(part, place)):
                    raise SchemaRefused(
                        place,
                        f"[{rank}] and [{other}]",
                        "a value could be of both: give them other types, or a required property with other constants, "
                        "or say anyOf",
                    )

    # References

    def _reference(self, ref: Any, place: str) -> str:
        if ref not in self._names:
            target = self._target(ref, place)
            self._names[ref] = f"d{len(self._names)}"
            self._waiting.append((ref, target))
        return f"#/$defs/{self._names[ref]}"

    def _resolved(self, ref: Any, place: str) -> Any:
        seen = set()
        while True:
            self._spend(1)
            target = self._target(ref, place)
            if not isinstance(target, dict) or "$ref" not in target or len(known(target, place)) > 1:
                return target
            if ref in seen:
                raise SchemaRefused(place, ref, "a reference to itself")
            seen.add(ref)
            ref = target["$ref"]

    def _followed(self, schema: Any, place: str) -> Any:
        self._spend(weight(schema))
        if isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and len(known(schema, place)) == 1:
            return self._resolved(schema["$ref"], place)
        return schema

    def _target(self, ref: Any, place: str) -> Any:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise SchemaRefused(f"{place}/$ref", ref, "only references into the schema itself: # or #/…")
        at: Any = self._root
        for part in ref.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and key in at:
                at = at[key]
            elif isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            else:
                raise SchemaRefused(f"{place}/$ref", ref, "there is nothing")
        return at

    # One value

    def _plain(self, own: Schema, place: str, depth: int) -> Schema:
        if "const" in own or "enum" in own:
            return self._values(own, place)
        wanted = kinds(own, place)
        if wanted is None:
            wanted = [kind for kind, words in KEYWORDS_OF_TYPE.items() if any(word in own for word in words)]
            if not wanted:
                return {}
        walked = [self._of_kind(kind, own, place, depth) for kind in wanted]
        if not walked:
            raise SchemaRefused(f"{place}/type", "none", "no value can be written here")
        return {"anyOf": walked} if len(walked) > 1 else walked[0]

    def _values(self, own: Schema, place: str) -> Schema:
        given = own["enum"] if "enum" in own else [own["const"]]
        if not isinstance(given, list):
            raise SchemaRefused(f"{place}/enum", given, "a list of values")
        if "const" in own:
            given = [value for value in given if canonical(value) == canonical(own["const"])]
        rest = {key: value for key, value in own.items() if key not in ("enum", "const")}
        left = [value for value in given if fits(value, rest, place)]
        if not left:
            raise SchemaRefused(place, "enum or const", "none of the values fits what else is said of them")
        return {"enum": left}

    def _of_kind(self, kind: str, own: Schema, place: str, depth: int) -> Schema:
        if kind in ("null", "boolean"):
            return {"type": kind}
        if kind == "string":
            return {"type": "string", **string_rules(own, place)}
        if kind in ("integer", "number"):
            return {"type": kind, **_number_rules(kind, own, place)}
        return self._array(own, place, depth) if kind == "array" else self._object(own, place, depth)

    def _array(self, own: Schema, place: str, depth: int) -> Schema:
        first, rest = own.get("prefixItems", []), own.get("items", True)
        if isinstance(rest, list):
            # As it was said before 2020.
            first, rest = rest, own.get("additionalItems", True)
        if not isinstance(first, list):
            raise SchemaRefused(f"{place}/prefixItems", first, "a list of schemas")
        low, high = count_of(own, "minItems", place), count_of(own, "maxItems", place)
        if own.get("uniqueItems") and (high is None or high > 1):
            raise SchemaRefused(f"{place}/uniqueItems", True, "this keyword cannot be enforced")
        made: Schema = {"type": "array"}
        if first:
            made["prefixItems"] = [
                self._walk(item, f"{place}/prefixItems[{rank}]", depth + 1) for rank, item in enumerate(first)
            ]
        closed = rest is False or (high is not None and high <= len(first))
        made["items"] = False if closed else self._walk(rest, f"{place}/items", depth + 1)
        return made | {key: value for key, value in (("minItems", low), ("maxItems", high)) if value is not None}

    def _object(self, own: Schema, place: str, depth: int) -> Schema:
        named = own.get("properties", {})
        patterns = own.get("patternProperties", {})
        needed = own.get("required", [])
        if not isinstance(named, dict) or not isinstance(patterns, dict) or not isinstance(needed, list):
            raise SchemaRefused(place, "properties, patternProperties or required", "two objects and a list")
        others = own.get("additionalProperties", None)
        if len(patterns) > 1:
            raise SchemaRefused(f"{place}/patternProperties", f"{len(patterns)} patterns", "one at most")
        for pattern in patterns:
            enforced = string_rules({"pattern": pattern}, f"{place}/patternProperties")["pattern"]
            clash = next((name for name in named if matches(pattern, name, f"{place}/patternProperties")), None)
            if clash is not None:
                raise SchemaRefused(f"{place}/patternProperties", pattern, f"it matches the property {clash!r}")
        all_named = dict(named)
        for name in needed:
            if name not in all_named:
                matching = [value for pattern, value in patterns.items() if matches(pattern, str(name), place)]
                all_named[name] = (matching or [True if others is None else others])[0]
        made: Schema = {"type": "object"}
        musts = set(needed)
        if all_named or "properties" in own:
            made["properties"] = {
                name: self._walk(value, f"{place}/properties/{name}", depth + 1)
                for name, value in all_named.items()
                if value is not False or name in musts
            }
        if needed:
            made["required"] = list(dict.fromkeys(needed))
        if patterns:
            [(pattern, value)] = patterns.items()
            made["patternProperties"] = {enforced: self._walk(value, f"{place}/patternProperties/{pattern}", depth + 1)}
        if others is not None:
            spot = f"{place}/additionalProperties"
            made["additionalProperties"] = False if others is False else self._walk(others, spot, depth + 1)
        self._names_and_counts(own, made, place)
        return made

    def _names_and_counts(self, own: Schema, made: Schema, place: str) -> None:
        if "propertyNames" in own:
            if made.get("properties"):
                raise SchemaRefused(f"{place}/propertyNames", "set", "not beside properties")
            names = self._walk(own["propertyNames"], f"{place}/propertyNames", MAX_DEPTH - 1)
            if "$ref" in names or "anyOf" in names:
                raise SchemaRefused(f"{place}/propertyNames", "several schemas", "one that says it all")
            made["propertyNames"] = names
        low, high = count_of(own, "minProperties", place), count_of(own, "maxProperties", place)
        free = (
            "patternProperties" in made
            or made.get("additionalProperties", False) is not False
            or ("properties" not in made)
        )
        # Free names may repeat, and then they count once.
        if low is not None and low > (len(made.get("required", [])) + 1) and free:
            raise SchemaRefused(f"{place}/minProperties", low, "with names of free choice, one more than are required")
        made |= {key: value for key, value in (("minProperties", low), ("maxProperties", high)) if value is not None}


def _number_rules(kind: str, own: Schema, place: str) -> Schema:
    rules = {}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        value = own.get(keyword)
        if value is None or value is False:
            continue
        if value is True and keyword.startswith("exclusive"):
            # As it was said in draft 4: the bound itself is excluded.
            bound = keyword.removeprefix("exclusive").lower()
            if bound in own:
                rules[keyword] = own[bound]
                rules.pop(bound, None)
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SchemaRefused(f"{place}/{keyword}", value, "must be a number")
        rules[keyword] = value
    if kind == "number" and "multipleOf" in rules:
        raise SchemaRefused(f"{place}/multipleOf", rules["multipleOf"], "can only be enforced for integers")
    if kind == "integer":
        rules = {keyword: _whole(keyword, value, place) for keyword, value in rules.items()}
    return rules


def _whole(keyword: str, value: float, place: str) -> int:
    if keyword == "multipleOf":
        if value != int(value) or value < 1:
            raise SchemaRefused(f"{place}/multipleOf", value, "must be a whole number from 1 for integers")
        return int(value)
    if value == int(value):
        return int(value)
    # The next whole number inside the bound; an exclusive bound then lies outside by itself.
    return math.ceil(value) if keyword in ("minimum", "exclusiveMaximum") else math.floor(value)
