"""Grammars through xgrammar (Dong et al. 2024): pushdown automata, most of whose masks are computed ahead."""

from __future__ import annotations

import json
import re
from typing import Any

import xgrammar
from xgrammar.exception import DeserializeFormatError, DeserializeVersionError, InvalidJSONError

from runtime.grammar.interface import CompiledGrammar, Matcher, Words
from runtime.grammar.spec import JSON_LINE, GrammarRefused, GrammarSpec

# Where in the library's source it happened, which its messages begin with.
_ORIGIN = re.compile(r"\A\[[\d:]+\] \S+:\d+: ")
# Control characters but the line end; and, alone at a token's end, the first bytes of UTF-8 that not every second may
# follow.
_STRAY = re.compile(rb"[\x00-\x09\x0b-\x1f]|[\xe0\xed\xf0\xf4]\Z")
# Where a format of a structural tag holds others.
_NESTED = frozenset({"format", "elements", "tags", "content"})


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
        # Of all tokens, and of those for plain specs.
        self._infos = {False: info, True: _plain(info)}
        self._textless = {plain: frozenset(some.special_token_ids) for plain, some in self._infos.items()}
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
        return cls(_respelt(found, spellings))

    @classmethod
    def of_vocabulary(cls, data: bytes) -> XGrammarLibrary:
        """From what `vocabulary` of another one returned."""
        return cls(xgrammar.TokenizerInfo.deserialize_json(data.decode()))

    def vocabulary(self) -> bytes:
        return str(self._infos[False].serialize_json()).encode()

    def textless(self, spec: GrammarSpec) -> frozenset[int]:
        return self._textless[spec.plain]

    def compile(self, spec: GrammarSpec) -> XGrammarCompiled:
        # One thread: what a hostile grammar costs is bounded by the time of one core, and several compile at once.
        compiler = xgrammar.GrammarCompiler(self._infos[spec.plain], max_threads=1, cache_enabled=False)
        try:
            return XGrammarCompiled(_compile(compiler, spec))
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            raise GrammarRefused(_said(error)) from None

    def dump(self, grammar: CompiledGrammar) -> bytes:
        assert isinstance(grammar, XGrammarCompiled)
        return grammar.grammar.serialize_json().encode()

    def load(self, data: bytes, spec: GrammarSpec) -> XGrammarCompiled:
        try:
            return XGrammarCompiled(xgrammar.CompiledGrammar.deserialize_json(data.decode(), self._infos[spec.plain]))
        except (DeserializeFormatError, DeserializeVersionError, InvalidJSONError) as error:
            raise GrammarRefused(f"the compiled grammar cannot be read: {_said(error)}") from None


def _compile(compiler: xgrammar.GrammarCompiler, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
    if spec.kind == "json_schema":
        # One line, one way to space it: small models lose themselves in free whitespace.
        return compiler.compile_json_schema(spec.text, any_whitespace=False)
    if spec.kind == "regex":
        return compiler.compile_regex(spec.text)
    if spec.kind == "ebnf":
        return compiler.compile_grammar(spec.text)
    return compiler.compile_structural_tag(json.dumps(_spelt_out(json.loads(spec.text))))


def _spelt_out(tag: Any) -> Any:
    """A structural tag with the grammars of its JSON lines: the library's own format of JSON leaves the spaces free."""
    if isinstance(tag, list):
        return [_spelt_out(part) for part in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") == JSON_LINE:
        schema, separators = json.dumps(tag["json_schema"]), tuple(tag["separators"])
        line = xgrammar.Grammar.from_json_schema(schema, any_whitespace=False, separators=separators)
        return {"type": "grammar", "grammar": str(line)}
    return {name: _spelt_out(part) if name in _NESTED else part for name, part in tag.items()}


def _plain(info: xgrammar.TokenizerInfo) -> xgrammar.TokenizerInfo:
    """The same vocabulary without the tokens that could make a text what no JSON is.

    The library's strings of bounded length let control characters through, which no JSON string may hold as they are.
    And its classes of characters take sequences of bytes that are no UTF-8, of which the text that is read then holds
    several characters where one was counted. Characters that only such tokens spell can still be escaped.
    """
    return _respelt(info, [b"" if _STRAY.search(piece) else bytes(piece) for piece in info.decoded_vocab])


def _respelt(info: xgrammar.TokenizerInfo, spellings: list[bytes]) -> xgrammar.TokenizerInfo:
    return xgrammar.TokenizerInfo(
        spellings,
        xgrammar.VocabType.RAW,
        vocab_size=info.vocab_size,
        stop_token_ids=info.stop_token_ids,
        add_prefix_space=info.add_prefix_space,
    )


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _ORIGIN.sub("", lines[0])[:400]
