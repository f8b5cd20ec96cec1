"""Texts to measure on that every machine with this environment has, each with its source and digest."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.resources
import importlib.util
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import InvalidRequest

Ints = np.ndarray
# Modules of the standard library whose sources are the code.
_CODE = ("argparse", "asyncio.base_events", "tarfile", "typing", "doctest", "logging.handlers")


@dataclass(frozen=True)
class Text:
    """kind: prose, code, maths, chat, or the name of a file. digest: SHA-256 of the text, in hex."""

    kind: str
    source: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def windows(self, tokenizer: Any, length: int, count: int) -> list[Ints]:
        """`count` stretches of `length` int32 tokens, evenly spread over the text. Raises InvalidRequest."""
        tokens = np.array(tokenizer.encode(self.text, add_special_tokens=False), dtype=np.int32)
        if len(tokens) < length:
            raise InvalidRequest("text", self.source, f"has {len(tokens)} tokens, a window takes {length}")
        step = (len(tokens) - length) // count
        return [tokens[at : at + length] for at in range(0, step * count + 1, max(step, 1))][:count]


def texts(kinds: list[str], loops: Path | None) -> list[Text]:
    """The texts of these kinds; other names are files. loops: where chats are read from. Raises InvalidRequest."""
    return [_text(kind, loops) for kind in kinds]


def _text(kind: str, loops: Path | None) -> Text:
    if kind == "prose":
        from pydoc_data.topics import topics

        return Text(kind, f"pydoc topics of Python {platform.python_version()}", "\n".join(map(str, topics.values())))
    if kind == "code":
        return Text(kind, f"{', '.join(_CODE)} of Python {platform.python_version()}", "\n".join(map(_source, _CODE)))
    if kind == "maths":
        mpmath = importlib.import_module("mpmath")

        return Text(kind, f"mpmath.function_docs {mpmath.__version__}", _source("mpmath.function_docs"))
    if kind == "chat":
        sessions = [rendered(messages) for messages in chats(loops)]
        return Text(kind, loops.name if loops is not None else "the recorded loop of agent_client", "\n".join(sessions))
    try:
        return Text(Path(kind).name, kind, Path(kind).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("text", kind, f"must be prose, code, maths, chat or a text file ({error})") from None


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise InvalidRequest("text", module, "is not installed")
    return Path(spec.origin).read_text(encoding="utf-8")


def chats(loops: Path | None) -> Iterator[list[dict[str, Any]]]:
    """Recorded sessions as lists of messages: a .jsonl or .jsonl.gz file, else the loop that comes with the client.

    Raises InvalidRequest for a file that cannot be read.
    """
    try:
        if loops is None:
            lines = (importlib.resources.files("agent_client") / "samples/repository.jsonl").read_text().split("\n")
        else:
            raw = gzip.decompress(loops.read_bytes()) if loops.suffix == ".gz" else loops.read_bytes()
            lines = raw.decode().split("\n")
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise InvalidRequest("loops", str(loops), f"must be a file of recorded loops ({error})") from None
    yield from (row["messages"] for row in rows if "messages" in row)


def rendered(messages: list[dict[str, Any]]) -> str:
    """A session as plain text, each call as `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""
    parts = []
    for message in messages:
        content = message.get("content")
        said = [content if isinstance(content, str) else json.dumps(content)] if content else []
        for call in message.get("tool_calls") or ():
            said.append(CALL + call_text(call) + CALL_END)
        parts.append(f"{message['role']}: {' '.join(said)}\n\n")
    return "".join(parts)


CALL, CALL_END = "<tool_call>", "</tool_call>"


def call_text(call: dict[str, Any]) -> str:
    """One recorded call as JSON."""
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    return json.dumps({"name": function["name"], "arguments": parsed})
