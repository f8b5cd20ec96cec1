"""Constraints and tool choices over gRPC."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
import pytest
from radixloop.v1 import common_pb2, inference_pb2

from runtime.grammar import GrammarRefused, GrammarSpec
from runtime.grammar.compile_process import CompileProcess
from tests.runtime.services_harness import (
    Answer,
    Server,
    chat_prompt,
    generate,
    ids_prompt,
    open_session,
    refused,
    request,
)

EOS = inference_pb2.FINISH_REASON_EOS
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}
QUESTION = chat_prompt(("user", "What now?"))


def tool(name: str, strict: bool = True) -> str:
    return json.dumps({"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": strict}})


def tool_of(schema: dict[str, Any], strict: bool = True) -> str:
    return json.dumps({"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}})


TOOLS = chat_prompt(("user", "What now?"), tools=[tool("first"), tool("second")])


def ask(server: Server, prompt: Any, max_tokens: int = 400, **more: Any) -> Answer:
    sampling = {"temperature": 1.0, "seed": 3, "max_tokens": max_tokens, **more.pop("sampling", {})}
    return generate(server, prompt, None, sampling=sampling, **more)


def choice(mode: str, *names: str) -> inference_pb2.ToolChoice:
    return inference_pb2.ToolChoice(mode=getattr(inference_pb2, f"TOOL_MODE_{mode}"), names=names)


def calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.deltas[-1].tool_calls]


def content(answer: Answer) -> str:
    return "".join(delta.content for delta in answer.deltas)


def pieces(answer: Answer) -> list[tuple[str, str]]:
    """Names and joined arguments of the calls as they streamed."""
    found: list[tuple[str, str]] = []
    for delta in answer.deltas:
        for piece in delta.tool_call_deltas:
            if piece.index == len(found):
                found.append((piece.name, ""))
            name, arguments = found[piece.index]
            found[piece.index] = (name, arguments + piece.arguments)
    return found


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": "[a-c]{3,5}"}, "[a-c]{3,5}"),
        ({"grammar": 'root ::= "x" root | "y"'}, "x*y"),
        ({"choice": inference_pb2.ChoiceList(texts=["yes", "no", "maybe so"])}, "yes|no|maybe so"),
        ({"json_schema": json.dumps(SCHEMA)}, r'\{"a": \d, "b": "[xy]"\}'),
        ({"structural_tag": '{"type": "structural_tag", "format": {"type": "const_string", "value": "hi"}}'}, "hi"),
    ],
)
def test_a_text_is_what_the_request_says(server: Server, constraint: dict[str, Any], pattern: str) -> None:
    for prompt in (ids_prompt(7, 8, 9), QUESTION, TOOLS):
        none = {"tool_choice": choice("NONE")} if prompt is TOOLS else {}
        answer = ask(server, prompt, **constraint, **none)
        assert re.fullmatch(pattern, answer.text)
        assert answer.deltas[-1].finish_reason == EOS
        if prompt is not QUESTION and prompt is not TOOLS:
            continue
        # JSON that looks like a call is the answer that was asked for.
        assert content(answer) == answer.text
        assert not calls(answer)


def test_an_object_may_hold_anything(server: Server) -> None:
    for seed in range(5):
        answer = ask(server, QUESTION, json_object=True, sampling={"seed": seed}, max_tokens=1500)
        if answer.deltas[-1].finish_reason == EOS:
            assert isinstance(json.loads(answer.text), dict)
        assert answer.text.startswith("{")
    assert not ask(server, QUESTION, json_object=False, max_tokens=10).text.startswith("{")


def test_ignore_eos_goes_on_where_the_text_may(server: Server) -> None:
    answer = ask(server, QUESTION, regex="a*", sampling={"ignore_eos": True}, max_tokens=20)
    assert (answer.text, answer.deltas[-1].finish_reason) == ("a" * 20, inference_pb2.FINISH_REASON_LENGTH)


@pytest.mark.parametrize("mode", ["REQUIRED", "named", "one at a time"])
def test_calls_are_forced(server: Server, mode: str) -> None:
    more: dict[str, Any] = {"tool_choice": choice("REQUIRED", *(["second"] if mode == "named" else []))}
    if mode == "one at a time":
        more["parallel_tool_calls"] = False
    found = set()
    for seed in range(6):
        answer = ask(server, TOOLS, sampling={"seed": seed}, **more)
        made = calls(answer)
        assert made
        assert not content(answer)
        assert pieces(answer) == [(call.name, call.arguments) for call in answer.deltas[-1].tool_calls]
        if mode != "REQUIRED":
            assert len(made) == 1
            assert answer.deltas[-1].finish_reason == EOS
        complete = made if answer.deltas[-1].finish_reason == EOS else made[:-1]
        for name, arguments in complete:
            found.add(name)
            assert arguments.keys() == {"a", "b"}
    assert found == {"second"} if mode == "named" else found <= {"first", "second"}


@pytest.mark.parametrize("calling", [True, False])
def test_calls_or_a_text_of_a_form(server: Server, calling: bool) -> None:
    first = tokens_of(server, "<" if calling else "n")[0]
    sampling = {"logit_bias": {first: 100.0}}
    answer = ask(server, TOOLS, regex="none|nothing", sampling=sampling, parallel_tool_calls=False)
    assert len(calls(answer)) == int(calling)
    assert (content(answer) in ("none", "nothing")) != calling


def tokens_of(server: Server, text: str) -> list[int]:
    prompt = common_pb2.Prompt(text=text)
    return list(server.inference.Tokenize(inference_pb2.TokenizeRequest(prompt=prompt)).token_ids.ids)


def test_free_text_stays_free_and_a_call_in_it_is_found(server: Server) -> None:
    free = ask(server, TOOLS, tool_choice=choice("AUTO"), sampling={"ignore_eos": True}, max_tokens=60)
    plain = ask(server, TOOLS, tool_choice=choice("NONE"), sampling={"ignore_eos": True}, max_tokens=60)
    assert free.ids == plain.ids
    assert content(free) == free.text == content(plain)


def test_a_session_remembers_its_tools(server: Server) -> None:
    session = open_session(server)
    first = ask(server, TOOLS, session_id=session, tool_choice=choice("REQUIRED", "first"))
    assert [name for name, _ in calls(first)] == ["first"]
    result = chat_prompt(("tool", "done"))
    second = ask(server, result, session_id=session, tool_choice=choice("REQUIRED", "second"))
    assert [name for name, _ in calls(second)] == ["second"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"regex": "("}, "regex is '(': Regex parsing error"),
        ({"regex": ""}, "regex is '0 bytes': 1 to 16384 bytes"),
        ({"regex": "a" * 20_000}, "regex is '20000 bytes'"),
        ({"grammar": "nonsense"}, "grammar is 'nonsense'"),
        ({"json_schema": "{"}, "json_schema is '{': must be a JSON object"),
        ({"json_schema": '{"not": {}}'}, "json_schema/not is {}: this keyword cannot be enforced"),
        ({"json_schema": "{" * 100}, "json_schema"),
        ({"json_schema": '{"a":' * 100 + "1" + "}" * 100}, "at most 64 levels"),
        ({"choice": inference_pb2.ChoiceList()}, "choice is '0 texts'"),
        ({"choice": inference_pb2.ChoiceList(texts=["a", "a"])}, "must differ"),
        ({"choice": inference_pb2.ChoiceList(texts=["a", ""])}, "at least one character"),
        ({"structural_tag": '{"type": "structural_tag"}'}, "must read"),
        ({"structural_tag": '{"type": "structural_tag", "format": {"type": "x"}}'}, "Format type not recognized"),
        ({"tool_choice": choice("REQUIRED")}, "tool_choice is 'set': the prompt must be a chat that offers tools"),
        ({"tool_choice": choice("AUTO", "third"), "prompt": TOOLS}, "tool_choice.names is 'third'"),
        (
            {"prompt": chat_prompt(("user", "a"), tools=[tool("a b")])},
            "prompt.chat.tools[0].function.name is 'a b'",
        ),
        (
            {"prompt": chat_prompt(("user", "a"), tools=[tool("f").replace('"enum"', '"not"')])},
            "prompt.chat.tools[0].function.parameters/properties/b/not",
        ),
        (
            {"prompt": chat_prompt(("user", "a"), tools=[tool("f"), tool("g"), tool("f")])},
            "prompt.chat.tools[2].function.name is 'f': another tool has this name",
        ),
        (
            {"prompt": chat_prompt(("user", "a"), tools=[tool_of({"type": "array"})])},
            "prompt.chat.tools[0].function.parameters/type is 'array': arguments are an object",
        ),
        (
            {"prompt": chat_prompt(("user", "a"), tools=[tool("f").replace("true", '"yes"')])},
            "prompt.chat.tools[0].function.strict is 'yes'",
        ),
    ],
)
def test_what_is_wrong_is_named(server: Server, more: dict[str, Any], says: str) -> None:
    prompt = more.pop("prompt", QUESTION)
    error = refused(lambda: server.inference.Generate(request(prompt, 5, **more)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert says in error.details()


def test_a_tool_that_is_not_strict_may_have_any_schema(server: Server) -> None:
    loose = tool("f", strict=False).replace('"enum"', '"not"')
    answer = ask(server, chat_prompt(("user", "a"), tools=[loose]), tool_choice=choice("REQUIRED", "f"), max_tokens=900)
    [call] = answer.deltas[-1].tool_calls
    assert call.name == "f"
    assert call.arguments.startswith("{")


def test_what_a_tool_that_is_not_strict_asks_for_is_a_wish(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(process: CompileProcess, spec: GrammarSpec) -> bytes:
        raise GrammarRefused("compiled it is too large")

    monkeypatch.setattr(CompileProcess, "compile", too_large)
    wish, promise = (chat_prompt(("user", "a"), tools=[tool("wish", strict)]) for strict in (False, True))
    answer = ask(server, wish, tool_choice=choice("REQUIRED"), max_tokens=60)
    assert answer.deltas[-1].tool_calls[0].name == "wish"
    error = refused(lambda: ask(server, promise, tool_choice=choice("REQUIRED")))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "compiled it is too large" in error.details()
    # What a text would have to be says nothing of calls.
    error = refused(lambda: ask(server, promise, tool_choice=choice("REQUIRED"), regex="a"))
    assert error.details().startswith("prompt.chat.tools is ")


SHORT = {"type": "string", "maxLength": 3}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "string"}, False),
        ({"title": "anything"}, True),
        ({"type": ["object", "null"], "properties": {"a": SHORT}}, True),
        ({"$defs": {"x": {"properties": {"a": SHORT}}}, "$ref": "#/$defs/x"}, True),
        ({"anyOf": [{"properties": {"a": SHORT}}, {"properties": {"b": SHORT}}]}, True),
    ],
)
def test_arguments_are_an_object_whatever_the_schema_allows(
    server: Server, schema: dict[str, Any], strict: bool
) -> None:
    prompt = chat_prompt(("user", "a"), tools=[tool_of(schema, strict)])
    for seed in range(4):
        answer = ask(server, prompt, tool_choice=choice("REQUIRED", "f"), sampling={"seed": seed}, max_tokens=120)
        [call] = answer.deltas[-1].tool_calls
        assert call.arguments.startswith("{")
        assert content(answer) == ""
