"""The options of `generate` that hold a text to a form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from agent_client.cli_demands import demands, read_tools
from agent_client.generate_options import chat_prompt, generate_request

NOTHING: dict[str, Any] = {
    "json_schema": None,
    "json_object": False,
    "regex": None,
    "grammar": None,
    "choices": None,
    "tool_choice": None,
    "one_call": False,
}


def asked(**given: Any) -> dict[str, Any]:
    return demands(**{**NOTHING, **given})


def test_nothing_is_demanded_unless_asked() -> None:
    assert asked() == {}


def test_each_option_becomes_its_field(tmp_path: Path) -> None:
    file = tmp_path / "demand"
    file.write_text('{"type": "integer"}')
    assert asked(json_schema=file) == {"json_schema": '{"type": "integer"}'}
    assert asked(grammar=file) == {"grammar": '{"type": "integer"}'}
    assert asked(json_object=True) == {"json_object": True}
    assert asked(regex="a+") == {"regex": "a+"}
    request = generate_request("x", asked(choices=["yes", "no"]))
    assert list(request.choice.texts) == ["yes", "no"]


def test_a_tool_is_chosen_by_its_name() -> None:
    prompt = chat_prompt([{"role": "user", "content": "x"}], None, None)
    named = generate_request(prompt, asked(tool_choice="ls", one_call=True))
    plain = generate_request(prompt, asked(tool_choice="required"))
    assert list(named.tool_choice.names) == ["ls"]
    assert named.tool_choice.mode == plain.tool_choice.mode
    assert not named.parallel_tool_calls
    assert not plain.tool_choice.names
    assert not plain.HasField("parallel_tool_calls")


def test_two_demands_at_once_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="--json-object and --regex"):
        asked(json_object=True, regex="a")


@pytest.mark.parametrize(("text", "says"), [("{", "no JSON"), ("{}", "a list of tools"), ("[1]", "a list of tools")])
def test_a_file_without_tools_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "tools.json"
    file.write_text(text)
    with pytest.raises(typer.BadParameter, match=says):
        read_tools(file)


def test_tools_are_read(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('[{"type": "function", "function": {"name": "ls"}}]')
    assert read_tools(file)[0]["function"]["name"] == "ls"
    assert read_tools(None) == []
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(typer.BadParameter):
        read_tools(file)
