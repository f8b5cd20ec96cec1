"""The grammars of calls: the language of each format, and that many tools do not make it large."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from radixloop.v1 import inference_pb2

from runtime.errors import InvalidRequest
from runtime.grammar import json_schema
from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.tool_rules import MAX_WISHES, ToolRules, tool_rules
from runtime.tool_calls import SEPARATORS, ToolFormat, parse_tool_calls
from runtime.tool_calls.formats import HERMES, LLAMA3, MISTRAL_LIST, MISTRAL_NAMED
from tests.runtime.grammar.walks import byte_library, compiled, walk

FORMATS = [HERMES, LLAMA3, MISTRAL_LIST, MISTRAL_NAMED]
WORD = {"type": "string", "pattern": "^[a-z]{1,8}$"}
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3}


def record(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


LOOK_UP = record({"word": WORD, "by": NUMBERS})
TOOLS = {"look_up": LOOK_UP, "ls": record({}), "look": None, "loo": record({"word": WORD})}


def takes(grammar: CompiledGrammar, text: str) -> bool:
    _, pieces = byte_library()
    matcher = grammar.matcher()
    return all(matcher.accept(pieces.index(bytes([byte]))) for byte in text.encode()) and matcher.complete


def written(form: ToolFormat, *calls: tuple[str, Any]) -> str:
    told = [
        form.before + name + form.between + json.dumps(arguments, separators=form.separators) + form.after
        for name, arguments in calls
    ]
    return form.opening + form.separator.join(told) + form.closing


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("separators", [SEPARATORS, (",", ":"), (",", ": ")])
def test_calls_are_written_in_one_way(form: ToolFormat, separators: tuple[str, str]) -> None:
    form = replace(form, separators=separators)
    grammar = compiled(ToolRules(TOOLS, required=True, parallel=True).spec(form, None))
    look_up = {"word": "prefix", "by": [1, 2, 3]}
    assert takes(grammar, written(form, ("look_up", look_up)))
    assert takes(grammar, written(form, ("look", {"any": [{"thing": None}, 1.5]}), ("ls", {}), ("loo", {"word": "x"})))
    for other in {SEPARATORS, (",", ":"), (" , ", " : ")} - {separators}:
        assert not takes(grammar, written(replace(form, separators=other), ("look_up", look_up)))
    for name, arguments in (("ls", look_up), ("look_up", {}), ("lo", {}), ("look_", {}), ("loo", {"word": "X"})):
        assert not takes(grammar, written(form, (name, arguments)))
    assert not takes(grammar, "")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_chance_writes_comes_back_letter_for_letter(form: ToolFormat) -> None:
    tools = {name: schema for name, schema in TOOLS.items() if schema is not None}
    for parallel in (True, False):
        grammar = compiled(ToolRules(tools, required=True, parallel=parallel).spec(form, None))
        for seed in range(10):
            text = walk(grammar, random.Random(seed)).decode()
            told = [(call["name"], json.loads(call["arguments"])) for call in parse_tool_calls(text)]
            assert written(form, *told) == text
            assert len(told) == 1 or parallel


def test_many_schemas_are_held_to_only_where_they_are_strict() -> None:
    for count in (MAX_WISHES, MAX_WISHES + 1):
        schemas = [record({f"p{number}": WORD}) for number in range(count)]
        asked = inference_pb2.GenerateRequest(tool_choice={"mode": inference_pb2.TOOL_MODE_REQUIRED})
        tools = [
            {"type": "function", "function": {"name": f"f{rank}", "parameters": schema, "strict": rank == 0}}
            for rank, schema in enumerate([*schemas, *schemas])
        ]
        rules = tool_rules(asked, tools)
        assert rules is not None
        # Equal ones count once.
        assert (rules.functions["f1"] is None) == (count > MAX_WISHES)
        assert rules.functions["f0"] is not None
        assert rules.without_wishes().functions["f1"] is None


def test_the_schemas_of_many_tools_take_no_longer_to_read_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "MAX_NODES", 100)
    large = [record({f"{tool}p{number}": WORD for number in range(60)}) for tool in (0, 0, 1)]

    def rules(strict: bool, *names: str) -> ToolRules | None:
        choice = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_REQUIRED, names=names)
        functions = [{"name": f"f{rank}", "parameters": schema, "strict": strict} for rank, schema in enumerate(large)]
        tools = [{"type": "function", "function": function} for function in functions]
        return tool_rules(inference_pb2.GenerateRequest(tool_choice=choice), tools)

    all_three, last = rules(False), rules(False, "f2")
    assert all_three is not None
    assert [schema is not None for schema in all_three.functions.values()] == [True, True, False]
    assert last is not None
    assert last.functions["f2"] is not None
    with pytest.raises(InvalidRequest, match=r"tools\[2\].*at most 100 parts in the schemas of a request"):
        rules(True)


def test_tools_that_take_the_same_arguments_share_their_grammar() -> None:
    sizes = []
    for count in (8, 512):
        functions: dict[str, dict[str, Any] | None] = {f"tool_{number}": None for number in range(count)}
        grammar = compiled(ToolRules(functions, required=True, parallel=True).spec(HERMES, None))
        assert takes(grammar, written(HERMES, ("tool_0", {"a": 1}), (f"tool_{count - 1}", {})))
        assert not takes(grammar, written(HERMES, (f"tool_{count}", {})))
        sizes.append(len(byte_library()[0].dump(grammar)))
    assert sizes[1] < 4 * sizes[0]
