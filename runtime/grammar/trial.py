"""Walking through a compiled grammar before a model does."""

from __future__ import annotations

import time

import numpy as np

from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.masks import MaskBuffer
from runtime.grammar.run_grammar import SLOWEST_MASK_S
from runtime.grammar.spec import GrammarRefused

STEPS = 96


def try_out(grammar: CompiledGrammar, vocab_size: int) -> None:
    """Let chance write some tokens. Raises GrammarRefused where a mask is slow to come, or empty."""
    random = np.random.default_rng(0)
    matcher = grammar.matcher()
    buffer = MaskBuffer(vocab_size)
    for _ in range(STEPS):
        began = time.thread_time()
        allowed = np.flatnonzero(buffer.fill(matcher))
        took = time.thread_time() - began
        if took > SLOWEST_MASK_S:
            raise GrammarRefused(
                f"finding the tokens that may come next takes {took * 1000:.0f} ms; "
                f"at most {SLOWEST_MASK_S * 1000:g} ms is allowed"
            )
        if not len(allowed):
            raise GrammarRefused("it leads where no token may come next and the text may not end either")
        matcher.accept(int(random.choice(allowed)))
        if matcher.ended:
            matcher = grammar.matcher()
