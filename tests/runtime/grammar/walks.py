"""Texts that chance writes under a grammar, byte by byte."""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np

from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.masks import MaskBuffer
from runtime.grammar.spec import GrammarSpec
from runtime.grammar.xgrammar_library import XGrammarLibrary
from runtime.sampling.detokenizer import _BYTE_OF_CHAR, silent_token_ids
from tests.runtime.chat_templates import tokenizer

# Characters that bring a text nearer to its end.
_CLOSING = frozenset(b'"}],')


@lru_cache(maxsize=1)
def byte_library() -> tuple[XGrammarLibrary, list[bytes]]:
    """A library whose tokens are single bytes and an end token, and the spelling of each."""
    made = tokenizer(None)
    tokens = made.convert_ids_to_tokens(range(259))
    pieces = [bytes([_BYTE_OF_CHAR[token]]) if len(token) == 1 else b"" for token in tokens]
    end = made.convert_tokens_to_ids("<|im_end|>")
    return XGrammarLibrary.of_tokenizer(made, len(pieces), (end,), silent_token_ids(made)), pieces


def compiled(spec: GrammarSpec) -> CompiledGrammar:
    return byte_library()[0].compile(spec)


def walk(grammar: CompiledGrammar, random_: random.Random, longest: int = 4000) -> bytes:
    """One text that the grammar takes as complete."""
    library, pieces = byte_library()
    (end,) = library.end_tokens
    matcher = grammar.matcher()
    buffer = MaskBuffer(len(pieces))
    text = b""
    while len(text) < longest:
        allowed = np.flatnonzero(buffer.fill(matcher)).tolist()
        assert allowed, f"nothing may follow {text!r}"
        if end in allowed:
            if len(allowed) == 1 or random_.random() < 0.5:
                return text
            allowed.remove(end)
        closing = [token for token in allowed if pieces[token][0] in _CLOSING]
        plain = [token for token in allowed if 32 <= pieces[token][0] < 127]
        if closing and random_.random() < 0.3:
            allowed = closing
        elif plain and random_.random() < 0.8:
            allowed = plain
        token = random_.choice(allowed)
        assert matcher.accept(token)
        text += pieces[token]
    raise AssertionError(f"no end after {longest} bytes: {text[:100]!r}")
