"""What the engine asks of a grammar library."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.grammar.spec import GrammarSpec

Words = NDArray[np.int32]


class Matcher(Protocol):
    """One text on its way through a grammar, token by token. Not for two threads at once."""

    def accept(self, token_id: int) -> bool:
        """Take a token; False, and nothing changed, where the grammar refuses it."""

    def rollback(self, tokens: int) -> None:
        """Forget the last accepted tokens."""

    def fill(self, words: Words) -> None:
        """Set bit i % 32 of word i // 32 for every token i that may come next, and clear the others.

        `words` is int32 [ceil(vocab / 32)]. Must not be called once an end token was accepted.
        """

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""

    @property
    def ended(self) -> bool:
        """Whether an end token was accepted."""


class CompiledGrammar(Protocol):
    """A grammar over one vocabulary. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""

    def matcher(self) -> Matcher:
        """At the beginning of a text."""


class GrammarLibrary(Protocol):
    """Compiles grammars for one vocabulary.

    Attributes:
        end_tokens: the ids that may follow a complete text.
    """

    end_tokens: frozenset[int]

    def vocabulary(self) -> bytes:
        """All that another process needs to make an equal library."""

    def textless(self, spec: GrammarSpec) -> frozenset[int]:
        """The tokens that no text of a grammar is spelt with, the special ones above all."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises GrammarRefused, with the library's own words, for what is no grammar. May take any time and memory."""

    def dump(self, grammar: CompiledGrammar) -> bytes:
        """A compiled grammar as bytes, for `load` of an equal library."""

    def load(self, data: bytes, spec: GrammarSpec) -> CompiledGrammar: ...
