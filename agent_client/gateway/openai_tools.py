"""OpenAI's `tool_choice` and `response_format` as the runtime's constraints, for chat completions and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from ..generate_options import GenerateOptions
from .bodies import Body
from .failures import refused

Mode = Literal["auto", "none", "required"]
MODES: tuple[Mode, ...] = ("auto", "none", "required")


class StructuredOutputs(Body):
    """vLLM's constraints, by its names."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


def read_tool_choice(
    choice: str | dict[str, Any] | None, tools: Sequence[Mapping[str, Any]]
) -> tuple[Mode | None, list[str]]:
    """Whether tools are to be called, and the only ones that may be; an empty list is all of them. Raises ApiError.

    `tools` have the shape of chat completions. A choice is a word, one function (in the shape of either API), or
    `allowed_tools`.
    """
    if choice is None or choice == "auto":
        return None, []
    if isinstance(choice, str):
        mode = next((mode for mode in MODES if mode == choice), None)
        if mode is None:
            raise refused("tool_choice", f"is {choice!r}; 'auto', 'none', 'required' or a function is served")
        return _with_tools(mode, [], tools)
    kind = choice.get("type")
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        wanted = allowed.get("tools") if isinstance(allowed, dict) else None
        mode = next((mode for mode in MODES if isinstance(allowed, dict) and mode == allowed.get("mode", "auto")), None)
        if mode is None or not isinstance(wanted, list) or not wanted:
            raise refused("tool_choice", "allowed_tools takes a mode, 'auto' or 'required', and a list of tools")
        return _with_tools(mode, [_name(tool) for tool in wanted], tools)
    if kind != "function":
        raise refused("tool_choice", f"has the type {kind!r}; functions, or allowed_tools of them, are served")
    return _with_tools("required", [_name(choice)], tools)


def set_tools(options: GenerateOptions, mode: Mode | None, names: Sequence[str], parallel: bool | None) -> None:
    """Sets the runtime's options for a chat that offers tools."""
    if mode is not None:
        options["tool_choice"] = mode
    if names:
        options["tool_names"] = names
    if parallel is not None:
        options["parallel_tool_calls"] = parallel


def set_format(options: GenerateOptions, format: Mapping[str, Any] | None, where: str) -> None:
    """Sets the runtime's constraint for a `response_format`, or a `text.format`. Raises ApiError naming the field."""
    kind = "text" if format is None else format.get("type")
    if format is None or kind == "text":
        return
    if kind == "json_object":
        options["json_object"] = True
    elif kind == "json_schema":
        # Chat completions wrap name and schema; responses do not.
        inner, place = (format["json_schema"], f"{where}.json_schema") if "json_schema" in format else (format, where)
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if not isinstance(schema, dict):
            raise refused(f"{place}.schema", "must be a JSON schema, an object")
        options["json_schema"] = schema
    else:
        raise refused(f"{where}.type", f"is {kind!r}; 'text', 'json_object' and 'json_schema' are served")


def set_structured(options: GenerateOptions, wanted: StructuredOutputs | None) -> None:
    """Sets the runtime's constraint for vLLM's `structured_outputs`."""
    given = {} if wanted is None else wanted.model_dump(exclude_none=True)
    if "json_" in given:
        given["json_schema"] = given.pop("json_")
    options.update(given)  # type: ignore[typeddict-item]


def _with_tools(mode: Mode, names: list[str], tools: Sequence[Mapping[str, Any]]) -> tuple[Mode, list[str]]:
    if not tools:
        if mode == "none":
            return mode, []
        raise refused("tool_choice", "asks for a call, and there are no tools")
    # Bad tools are the runtime's to refuse, by their place.
    offered = [tool["function"].get("name") for tool in tools if isinstance(tool.get("function"), dict)]
    for name in names:
        if name not in offered:
            raise refused("tool_choice", f"names {name[:80]!r}, which is none of the tools")
    return mode, names


def _name(choice: Any) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise refused("tool_choice.function.name", "must be the name of one of the tools")
    return name
