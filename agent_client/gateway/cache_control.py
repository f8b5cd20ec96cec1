"""Anthropic's `cache_control`: what of a request is to be kept, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..prompts import Chat
from .anthropic_messages import CountRequest, Message, messages_prompt
from .failures import refused
from .keeping.breakpoints import TTL_S, Breakpoint

MAX_BREAKPOINTS = 4
_DEFAULT_TTL = "5m"


def breakpoints(asked: CountRequest, whole: Any) -> list[Breakpoint]:
    """In the order of the prompt; `whole` is the request's own `cache_control`. Raises ApiError for one that is none.

    Templates put tools before the system prompt or after it: a mark on a tool is one at the end of both.
    """
    found = [*islice(_breakpoints(asked), MAX_BREAKPOINTS + 1), *keep_all(whole, "cache_control")]
    if len(found) > MAX_BREAKPOINTS:
        raise refused("cache_control", f"stands at more places than the {MAX_BREAKPOINTS} that may be marked")
    return found


def _breakpoints(asked: CountRequest) -> Iterator[Breakpoint]:
    for rank, tool in enumerate(asked.tools or ()):
        if tool.cache_control is not None:
            yield Breakpoint(_ttl(tool.cache_control, f"tools[{rank}].cache_control"), _head(asked, asked.system))
    system = asked.system if isinstance(asked.system, list) else []
    for rank, block in enumerate(system):
        if "cache_control" in block and block["cache_control"] is not None:
            ttl = _ttl(block["cache_control"], f"system[{rank}].cache_control")
            yield Breakpoint(ttl, _head(asked, system[: rank + 1]))
    for rank, message in enumerate(asked.messages):
        blocks = message.content if isinstance(message.content, list) else []
        for place, block in enumerate(blocks):
            if block.get("cache_control") is None:
                continue
            ttl = _ttl(block["cache_control"], f"messages[{rank}].content[{place}].cache_control")
            last = rank == len(asked.messages) - 1 and place == len(blocks) - 1
            yield Breakpoint(ttl, None if last else _cut(asked, rank, blocks[: place + 1]))


def _head(asked: CountRequest, system: str | list[dict[str, Any]] | None) -> Chat:
    # A template wants a message: an empty one of the role that comes there ends where the prompt's own begins.
    first = [Message(role=message.role, content="") for message in asked.messages[:1]]
    return messages_prompt(asked.model_copy(update={"system": system, "messages": first}))


def _cut(asked: CountRequest, rank: int, blocks: list[dict[str, Any]]) -> Chat:
    last = asked.messages[rank].model_copy(update={"content": blocks})
    return messages_prompt(asked.model_copy(update={"messages": [*asked.messages[:rank], last]}))


def keep_all(control: Any, where: str) -> list[Breakpoint]:
    """A `cache_control` of the whole prompt; none where it is None. Raises ApiError."""
    return [] if control is None else [Breakpoint(_ttl(control, where), None)]


def _ttl(control: Any, where: str) -> str:
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        raise refused(where, "must read {'type': 'ephemeral'}, with a 'ttl' of '5m' or '1h' or none")
    ttl = control.get("ttl") or _DEFAULT_TTL
    if not isinstance(ttl, str) or ttl not in TTL_S:
        raise refused(f"{where}.ttl", f"is {ttl!r}; '5m' and '1h' are served")
    return ttl
