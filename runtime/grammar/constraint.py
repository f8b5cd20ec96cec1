"""What a request says that a text must be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from radixloop.v1 import inference_pb2

from runtime.errors import InvalidRequest
from runtime.grammar.json_schema import prepared
from runtime.grammar.spec import JSON_LINE, GrammarSpec
from runtime.services.convert import json_object
from runtime.tool_calls import SEPARATORS

MAX_TEXT_BYTES = 256 << 10
MAX_REGEX_BYTES = 16 << 10
MAX_CHOICES = 1024
MAX_CHOICE_BYTES = 64 << 10

Form = Literal["json_schema", "json_object", "regex", "grammar", "choice", "structural_tag"]
_LIMITS = {"regex": MAX_REGEX_BYTES, "choice": MAX_CHOICE_BYTES}


@dataclass(frozen=True)
class Constraint:
    """A checked constraint.

    Attributes:
        field: its name in the request, for refusals.
        format: the same as a format of a structural tag.
    """

    field: str
    spec: GrammarSpec
    format: dict[str, Any]


def constraint_of(request: inference_pb2.GenerateRequest) -> Constraint | None:
    """What a request demands of the text. Raises InvalidRequest."""
    form = request.WhichOneof("constraint")
    if form is None or (form == "json_object" and not request.json_object):
        return None
    value = list(request.choice.texts) if form == "choice" else getattr(request, form)
    return constraint(form, value)


def constraint(form: Form, value: Any, field: str | None = None) -> Constraint:
    """One form of constraint, checked as far as that is cheap: most of it is found out when it is compiled.

    `value` is text, True for `json_object`, and texts for `choice`; `field` is its name where it is not `form`.
    Raises InvalidRequest.
    """
    field = field or form
    if form == "choice":
        return _choice(field, value)
    if form == "json_object":
        schema = {"type": "object"}
        spec = GrammarSpec("json_schema", json.dumps(schema), trusted=True, plain=True)
        return Constraint(field, spec, schema_format(schema))
    _check_size(field, form, value)
    if form == "json_schema":
        schema = prepared(field, json_object(field, value))
        return Constraint(field, GrammarSpec("json_schema", json.dumps(schema), plain=True), schema_format(schema))
    if form == "regex":
        return Constraint(field, GrammarSpec("regex", value), {"type": "regex", "pattern": value})
    if form == "grammar":
        return Constraint(field, GrammarSpec("ebnf", value), {"type": "grammar", "grammar": value})
    tag = json_object(field, value)
    if tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), dict):
        raise InvalidRequest(field, value, 'must read {"type": "structural_tag", "format": {…}}')
    return Constraint(field, GrammarSpec("structural_tag", json.dumps(tag)), tag["format"])


def tag_spec(tag_format: dict[str, Any], **marks: bool) -> GrammarSpec:
    """A structural tag of one format; `marks` are those of a spec."""
    return GrammarSpec("structural_tag", json.dumps({"type": "structural_tag", "format": tag_format}), **marks)


def schema_format(schema: dict[str, Any], separators: tuple[str, str] = SEPARATORS) -> dict[str, Any]:
    """The format of JSON that a prepared schema describes; `separators` stand behind an item and behind a name."""
    return {"type": JSON_LINE, "json_schema": schema, "separators": separators}


def _choice(field: str, texts: list[str]) -> Constraint:
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise InvalidRequest(field, f"{len(texts)} texts", f"1 to {MAX_CHOICES} texts")
    if not all(texts):
        raise InvalidRequest(field, "", "a text has at least one character")
    if len(set(texts)) < len(texts):
        raise InvalidRequest(field, "a text twice", "the texts must differ")
    _check_size(field, "choice", "".join(texts))
    choices = {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}
    return Constraint(field, tag_spec(choices, trusted=True), choices)


def _check_size(field: str, form: str, text: str) -> None:
    limit = _LIMITS.get(form, MAX_TEXT_BYTES)
    size = len(text.encode(errors="replace"))
    if not 1 <= size <= limit:
        raise InvalidRequest(field, f"{size} bytes", f"1 to {limit} bytes")
