"""What `generate` can demand of the text: options, and what they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

DEMANDS = "What the text must be"

_FILE = {"exists": True, "dir_okay": False, "readable": True, "rich_help_panel": DEMANDS}
JsonSchema = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A JSON value that validates against this schema.", **_FILE)
]
JsonObject = Annotated[bool, typer.Option("--json-object", help="Any JSON object.", rich_help_panel=DEMANDS)]
Regex = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="The whole text matches it.", rich_help_panel=DEMANDS)
]
Grammar = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A text of this grammar in EBNF (GBNF), from its rule root.", **_FILE),
]
Choices = Annotated[
    list[str] | None,
    typer.Option("--choice", metavar="TEXT", help="One of several; give each one.", rich_help_panel=DEMANDS),
]
Tools = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Offer these tools, a JSON list in OpenAI's shape (implies --chat).", **_FILE),
]
ToolChoice = Annotated[
    str | None,
    typer.Option(
        metavar="auto|none|required|NAME", help="Whether to call a tool, or which one.", rich_help_panel=DEMANDS
    ),
]
OneCall = Annotated[bool, typer.Option("--one-call", help="At most one call in a reply.", rich_help_panel=DEMANDS)]


def demands(
    json_schema: Path | None,
    json_object: bool,
    regex: str | None,
    grammar: Path | None,
    choices: list[str] | None,
    tool_choice: str | None,
    one_call: bool,
) -> dict[str, Any]:
    """The options of a generate call. Raises BadParameter for more than one kind of text."""
    texts: dict[str, Any] = {
        "json_schema": None if json_schema is None else _read(json_schema),
        "json_object": json_object or None,
        "regex": regex,
        "grammar": None if grammar is None else _read(grammar),
        "choice": choices or None,
    }
    options = {name: value for name, value in texts.items() if value is not None}
    if len(options) > 1:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in options)
        raise typer.BadParameter(f"{named}: a text is held to one of them")
    if tool_choice in ("auto", "none", "required"):
        options["tool_choice"] = tool_choice
    elif tool_choice is not None:
        options |= {"tool_choice": "required", "tool_names": [tool_choice]}
    if one_call:
        options["parallel_tool_calls"] = False
    return options


def read_tools(file: Path | None) -> list[dict[str, Any]]:
    """The tools in a file. Raises BadParameter."""
    if file is None:
        return []
    try:
        tools = json.loads(_read(file))
    except ValueError as error:
        raise typer.BadParameter(f"{file} is no JSON: {error}") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise typer.BadParameter(f"{file} must hold a list of tools")
    return tools


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None
