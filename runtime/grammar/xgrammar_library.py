"""Grammars through xgrammar (Dong et al. 2024): pushdown automata, most of whose masks are computed ahead."""

from __future__ import annotations

import re
from typing import Any

import xgrammar
from xgrammar.exception import DeserializeFormatError, DeserializeVersionError, InvalidJSONError

from runtime.grammar.interface import CompiledGrammar, Matcher, Words
from runtime.grammar.spec import GrammarRefused, GrammarSpec

# Where in the library's source it happened, which its messages begin with.
_ORIGIN = re.compile(r"\A\[[\d:]+\] \S+:\d+: ")


class XGrammarMatcher:
    """A matcher of xgrammar."""

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)

    def accept(self, token_id: int) -> bool:
        return not self.ended and bool(self._matcher.accept_token(token_id))

    def rollback(self, tokens: int) -> None:
        self._matcher.rollback(tokens)

    def fill(self, words: Words) -> None:
        self._matcher.fill_next_token_bitmask(words[None])

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    @property
    def ended(self) -> bool:
        return bool(self._matcher.is_terminated())


class XGrammarCompiled:
    """A compiled grammar of xgrammar."""

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self.grammar = grammar
        self.size_bytes = int(grammar.memory_size_bytes)

    def matcher(self) -> Matcher:
        return XGrammarMatcher(self.grammar)


class XGrammarLibrary:
    """xgrammar with one vocabulary; see `GrammarLibrary`."""

    def __init__(self, info: xgrammar.TokenizerInfo) -> None:
        self._info = info
        # One thread: what a hostile grammar costs is bounded by the time of one core, and several compile at once.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.textless = frozenset(info.special_token_ids)
        self.end_tokens = frozenset(info.stop_token_ids)

    @classmethod
    def of_tokenizer(
        cls, tokenizer: Any, vocab_size: int, end_tokens: tuple[int, ...], silent: frozenset[int]
    ) -> XGrammarLibrary:
        """For a tokenizer of transformers and the `vocab_size` of the model's logits.

        `silent` are the tokens that the text of a reply leaves out: no text of a grammar is spelt with them.
        """
        found = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab_size, stop_token_ids=list(end_tokens)
        )
        spellings = [b"" if token in silent else bytes(piece) for token, piece in enumerate(found.decoded_vocab)]
        return cls(
            xgrammar.TokenizerInfo(
                spellings,
                xgrammar.VocabType.RAW,
                vocab_size=vocab_size,
                stop_token_ids=list(end_tokens),
                add_prefix_space=found.add_prefix_space,
            )
        )

    @classmethod
    def of_vocabulary(cls, data: bytes) -> XGrammarLibrary:
        """From what `vocabulary` of another one returned."""
        return cls(xgrammar.TokenizerInfo.deserialize_json(data.decode()))

    def vocabulary(self) -> bytes:
        return str(self._info.serialize_json()).encode()

    def compile(self, spec: GrammarSpec) -> XGrammarCompiled:
        try:
            return XGrammarCompiled(self._compile(spec))
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarRefused(_said(error)) from None

    def dump(self, grammar: CompiledGrammar) -> bytes:
        assert isinstance(grammar, XGrammarCompiled)
        return grammar.grammar.serialize_json().encode()

    def load(self, data: bytes) -> XGrammarCompiled:
        try:
            return XGrammarCompiled(xgrammar.CompiledGrammar.deserialize_json(data.decode(), self._info))
        except (DeserializeFormatError, DeserializeVersionError, InvalidJSONError) as error:
            raise GrammarRefused(f"the compiled grammar cannot be read: {_said(error)}") from None

    def _compile(self, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
        if spec.kind == "json_schema":
            # One line, one way to space it: small models lose themselves in free whitespace.
            return self._compiler.compile_json_schema(spec.text, any_whitespace=False)
        if spec.kind == "regex":
            return self._compiler.compile_regex(spec.text)
        if spec.kind == "ebnf":
            return self._compiler.compile_grammar(spec.text)
        return self._compiler.compile_structural_tag(spec.text)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _ORIGIN.sub("", lines[0])[:400]
