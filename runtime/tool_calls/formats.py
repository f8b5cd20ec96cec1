"""How models write their tool calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

# Tokens of these spellings belong to the text of a reply, though some tokenizers call them special.
MARKERS = frozenset({"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"})


# As Python's json and most templates write them.
SEPARATORS = (", ", ": ")


@dataclass(frozen=True)
class ToolFormat:
    """The text of calls: `opening`, the calls with `separator` between, `closing`.

    A call is `before`, the function's name, `between`, the arguments' JSON, `after`.

    Attributes:
        trigger: what a call begins with, in the middle of free text.
        separators: in its JSON, behind an item and behind a name. A call that the model writes with others comes back
            in other tokens with the next turn's history.
    """

    name: str
    trigger: str
    before: str
    between: str
    after: str
    separator: str
    opening: str = ""
    closing: str = ""
    separators: tuple[str, str] = SEPARATORS


HERMES = ToolFormat(
    "hermes", "<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n"
)
LLAMA3 = ToolFormat("llama3", '{"name": "', '{"name": "', '", "parameters": ', "}", separator="; ")
MISTRAL_LIST = ToolFormat(
    "mistral",
    "[TOOL_CALLS]",
    '{"name": "',
    '", "arguments": ',
    "}",
    separator=", ",
    opening="[TOOL_CALLS][",
    closing="]",
)
MISTRAL_NAMED = ToolFormat("mistral-named", "[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "", separator="")

# Of the call that `recognise` is shown.
SAMPLE_NAME = "markedtool"
SAMPLE_ARGUMENTS: dict[str, Any] = {"place": "here", "time": "now"}
_SPACED = re.compile(r'"place"(: ?)"here"(, ?)"time"')
_HERMES = re.compile(r'<tool_call>(\s*)\{"name": "markedtool", "arguments": .*?\}(\s*)</tool_call>', re.DOTALL)
_MISTRAL_LIST = re.compile(r"(\[TOOL_CALLS\]\s*\[)\s*\{")
_MISTRAL_NAMED = re.compile(r"\[TOOL_CALLS\]\s*markedtool\s*\[ARGS\]")
_LLAMA3 = re.compile(r'\{"name": "markedtool", "parameters": ')


def recognise(rendered: str) -> ToolFormat:
    """The format of a template that writes a call of `markedtool` like this.

    One that is unknown, or that writes none, is given the form of Hermes, which `chat_fallback` teaches.
    """
    spaced = _SPACED.search(rendered)
    form = _form(rendered)
    return form if spaced is None else replace(form, separators=(spaced[2], spaced[1]))


def _form(rendered: str) -> ToolFormat:
    if hermes := _HERMES.search(rendered):
        before, after = hermes.groups()
        return replace(HERMES, before=f'<tool_call>{before}{{"name": "', after=f"}}{after}</tool_call>")
    if _MISTRAL_NAMED.search(rendered):
        return MISTRAL_NAMED
    if listed := _MISTRAL_LIST.search(rendered):
        return replace(MISTRAL_LIST, opening=listed.group(1))
    return LLAMA3 if _LLAMA3.search(rendered) else HERMES
