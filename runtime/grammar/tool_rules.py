"""Which tools a reply may call, and the grammar of the calls in the model's own format."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from radixloop.v1 import inference_pb2

from runtime.errors import InvalidRequest
from runtime.grammar.constraint import Constraint, schema_format, tag_spec
from runtime.grammar.json_schema import Effort, prepared
from runtime.grammar.spec import GrammarSpec
from runtime.tool_calls import ToolFormat

MAX_TOOLS = 512
# Schemas that forced calls are held to for their own sake: what they take to hand over grows with their number squared.
MAX_WISHES = 48
# Within a call a name stands between quotes, or before a brace.
_NAME = re.compile(r'[^\s"\\\[\]{}<>|]{1,128}')
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class ToolRules:
    """What a reply may call.

    Attributes:
        functions: by name, the schema of the arguments; None where they are any object.
        required: whether it must call, and say nothing else.
        parallel: whether it may call more than once.
        wishes: the functions whose callers did not call them strict: their schemas are held to where that is cheap.
    """

    functions: dict[str, dict[str, Any] | None]
    required: bool
    parallel: bool
    wishes: frozenset[str] = frozenset()

    def without_wishes(self) -> ToolRules:
        """The same with any object as the arguments of functions that are not strict."""
        functions = {name: None if name in self.wishes else schema for name, schema in self.functions.items()}
        return replace(self, functions=functions, wishes=frozenset())

    def spec(self, form: ToolFormat, text: Constraint | None) -> GrammarSpec:
        """The grammar of a reply; `text` is what it must be where it calls nothing."""
        trusted = not any(self.functions.values())
        if self.required:
            return tag_spec(self._calls(form), trusted=trusted, plain=True)
        if text is not None:
            either = {"type": "or", "elements": [text.format, self._calls(form)]}
            return tag_spec(either, trusted=trusted and text.spec.trusted, plain=True)
        return tag_spec(self._triggered(form), trusted=trusted, plain=True, lazy=True)

    def _call(self, form: ToolFormat) -> dict[str, Any]:
        """Any of the calls. What they have in common stands there once: compiling takes long for each repetition."""
        alike: dict[str, list[str]] = {}
        for name, schema in self.functions.items():
            alike.setdefault(json.dumps(_ANY_OBJECT if schema is None else schema), []).append(name)
        calls = []
        for schema_text, names in alike.items():
            arguments = schema_format(json.loads(schema_text), form.separators)
            calls.append(_in_order(_one_of([_text(name) for name in names]), _text(form.between), arguments))
        return {"type": "tag", "begin": form.before, "content": _one_of(calls), "end": form.after}

    def _in_a_row(self, form: ToolFormat) -> dict[str, Any]:
        return {
            "type": "tags_with_separator",
            "tags": [self._call(form)],
            "separator": form.separator,
            "at_least_one": True,
            "stop_after_first": not self.parallel,
        }

    def _calls(self, form: ToolFormat) -> dict[str, Any]:
        row = self._in_a_row(form)
        if not form.opening:
            return row
        return _in_order(_text(form.opening), row, _text(form.closing))

    def _triggered(self, form: ToolFormat) -> dict[str, Any]:
        tag = self._call(form)
        if form.opening:
            tag = {"type": "tag", "begin": form.opening, "content": self._in_a_row(form), "end": form.closing}
        return {
            "type": "triggered_tags",
            "triggers": [form.trigger],
            "tags": [tag],
            "at_least_one": False,
            "stop_after_first": not self.parallel,
        }


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _in_order(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _one_of(formats: list[dict[str, Any]]) -> dict[str, Any]:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": formats}


def tool_rules(request: inference_pb2.GenerateRequest, tools: list[dict[str, Any]]) -> ToolRules | None:
    """What a request lets the model call; None where that is nothing. Raises InvalidRequest."""
    choice = request.tool_choice
    if choice.mode == inference_pb2.TOOL_MODE_NONE:
        return None
    required = choice.mode == inference_pb2.TOOL_MODE_REQUIRED
    if not tools:
        if required or choice.names:
            raise InvalidRequest("tool_choice", "set", "the prompt must be a chat that offers tools")
        return None
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest("prompt.chat.tools", f"{len(tools)} tools", f"at most {MAX_TOOLS}")
    functions: dict[str, dict[str, Any] | None] = {}
    named, strict = frozenset(choice.names), set[str]()
    effort, known = Effort(), dict[str, dict[str, Any]]()
    for rank, tool in enumerate(tools):
        function, field = tool["function"], f"prompt.chat.tools[{rank}].function"
        name = function["name"]
        if name in functions:
            raise InvalidRequest(f"{field}.name", name, "another tool has this name")
        if _is_strict(field, function):
            strict.add(name)
        # Reading a schema takes time, which is for those that may be called.
        read = (required or name in strict) and (not named or name in named)
        functions[name] = _parameters(f"{field}.parameters", function, name in strict, effort, known) if read else None
    for name in choice.names:
        if name not in functions:
            raise InvalidRequest("tool_choice.names", name, "must be the name of one of the chat's tools")
    if choice.names:
        functions = {name: functions[name] for name in choice.names}
    parallel = not (required and len(choice.names) == 1)
    if request.HasField("parallel_tool_calls"):
        parallel = request.parallel_tool_calls
    wishes = frozenset(name for name, schema in functions.items() if schema is not None and name not in strict)
    rules = ToolRules(functions, required, parallel, wishes)
    return rules if len({json.dumps(functions[name]) for name in wishes}) <= MAX_WISHES else rules.without_wishes()


def _is_strict(field: str, function: dict[str, Any]) -> bool:
    if not _NAME.fullmatch(function["name"]):
        raise InvalidRequest(
            f"{field}.name", function["name"], "1 to 128 characters, no space, quote, backslash, bracket or bar"
        )
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        raise InvalidRequest(f"{field}.strict", strict, "must be true or false")
    return bool(strict)


def _parameters(
    field: str, function: dict[str, Any], strict: bool, effort: Effort, known: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
    given = function.get("parameters") or {}
    text = json.dumps(given)
    try:
        # A call that was forced is of use only with arguments that the tool takes.
        if text not in known:
            known[text] = prepared(field, _of_objects(field, given), effort)
        return known[text]
    except InvalidRequest:
        if strict:
            raise
        # What the caller did not call strict is a wish, not a promise.
        return None


def _of_objects(field: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema for what of `schema` is an object: whoever is called takes arguments by their names."""
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidRequest(f"{field}/type", kinds, "arguments are an object")
    return {**schema, "type": "object"}
