"""What a text must be, before it is compiled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from runtime.errors import RuntimeServiceError

Kind = Literal["json_schema", "regex", "ebnf", "structural_tag"]
# In a structural tag, beside the library's formats: JSON of a schema in one line, spaced in one way.
JSON_LINE = "json_line"


class GrammarRefused(RuntimeServiceError):
    """No grammar, or one whose compilation exceeds the runtime's bounds."""


class CompilerBusy(RuntimeServiceError):
    """A grammar was not compiled, for no fault of its own: asked for again it may be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; try again in a few seconds")
        self.retry_after_s = 2.0


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar as text.

    Attributes:
        trusted: made by the runtime itself, of parts whose size is bounded: compiling it is quick.
        plain: its texts hold no control characters but line ends, and only whole characters, as JSON's do.
        lazy: text is free until a trigger in it; there the tokens that stand for no text are free too.
    """

    kind: Kind
    text: str
    trusted: bool = False
    plain: bool = False
    lazy: bool = False

    @cached_property
    def digest(self) -> str:
        """The same for the same language, whoever asks for it."""
        return hashlib.blake2b(f"{self.kind} {self.plain} {self.text}".encode(), digest_size=20).hexdigest()
