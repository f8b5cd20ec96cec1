"""Where a call goes: to the runtime that has seen its beginning before, without a table of who has seen what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ...prompts import Chat, Prompt

T = TypeVar("T")

HEAD_LENGTH = 256


def prompt_head(prompt: Prompt) -> Any:
    """What a prompt has in common with those that grow from it, as JSON values.

    A chat up to its first question, with its tools; or the first characters or token ids of a plain prompt.
    """
    if not isinstance(prompt, Chat):
        return prompt[:HEAD_LENGTH]  # type: ignore[index]
    asked = next((rank for rank, message in enumerate(prompt.messages) if message["role"] == "user"), 0)
    return [*prompt.messages[: asked + 1], *prompt.tools]


def digest(value: Any) -> str:
    """32 hex digits for a JSON value."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:32]


def by_rendezvous(key: str, named: Iterable[tuple[str, T]]) -> Sequence[T]:
    """All of `named`, the best place for `key` first.

    Highest random weight (Thaler and Ravishankar, 1998): when one goes, only its keys move, each to its own next best,
    and they move back when it returns. Any gateway that knows the same names finds the same order.
    """

    def weight(name: str) -> bytes:
        return hashlib.blake2b(json.dumps([key, name]).encode(), digest_size=16).digest()

    return [member for _, member in sorted(named, key=lambda pair: weight(pair[0]), reverse=True)]
