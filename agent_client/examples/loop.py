"""What the examples have in common: two tools over this package's own modules, and the figures of a turn."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

QUESTION = "What do the modules prompts.py and words.py hold, and how long are they?"
# A model of 135 million parameters calls the tool that it must, and answers when it may call none.
FORCED = ["count_lines", "read_module", "count_lines", "read_module"]
ASK_FOR_ANSWER = "Now answer in one sentence, in words."
MAX_TOKENS = 48

_PACKAGE = Path(__file__).parent.parent

Module = Literal["prompts.py", "words.py"]


def read_module(name: Module) -> str:
    """Read how a module begins.

    Args:
        name: The module.
    """
    return (_PACKAGE / name).read_text(encoding="utf-8")[:200]


def count_lines(name: Module) -> str:
    """Count the lines of a module.

    Args:
        name: The module.
    """
    return f"{name} has {len((_PACKAGE / name).read_text(encoding='utf-8').splitlines())} lines"


TOOLS: dict[str, Callable[..., str]] = {"read_module": read_module, "count_lines": count_lines}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": list(get_args(Module)), "description": "The module."}},
    "required": ["name"],
    "additionalProperties": False,
}
DESCRIPTIONS = {name: str(function.__doc__).splitlines()[0] for name, function in TOOLS.items()}
FUNCTIONS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": PARAMETERS}}
    for name in TOOLS
]


class Turn(NamedTuple):
    """A call of the model: tokens of the prompt, those of them that were cached, tokens of the reply, and the reply."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    said: str


def main(run: Callable[[str, str, str], list[Turn]]) -> None:
    """Run an example from the command line and show its turns."""
    parser = argparse.ArgumentParser(description="Runs a loop of tool calls through the gateway.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the gateway, without /v1")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--key", default="none", help="where the gateway asks for keys")
    given = parser.parse_args()
    print("prompt  cached  output")
    for prompt, cached, output, said in run(given.url, given.model, given.key):
        print(f"{prompt:6,}  {cached:6,}  {output:6,}  {textwrap.shorten(said, 80)}")
