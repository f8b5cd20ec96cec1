"""Walking through a compiled grammar before a model does."""

from __future__ import annotations

import time

import numpy as np

from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.masks import MaskBuffer
from runtime.grammar.spec import GrammarRefused

STEPS = 96
# Every running choice waits for the slowest mask of a step.
SLOWEST_MASK_S = 0.1


def try_out(grammar: CompiledGrammar, vocab_size: int, steps: int = STEPS) -> None:
    """Let chance write `steps` tokens. Raises GrammarRefused where a mask is slow to come, or empty."""
    random = np.random.default_rng(0)
    matcher = grammar.matcher()
    buffer = MaskBuffer(vocab_size)
    for _ in range(steps):
        began = time.perf_counter()
        allowed = np.flatnonzero(buffer.fill(matcher))
        took = time.perf_counter() - began
        if took > SLOWEST_MASK_S:
            raise GrammarRefused(
                f"finding the tokens that may come next takes {took:.2f} s; at most {SLOWEST_MASK_S:g} s is allowed"
            )
        if not len(allowed):
            raise GrammarRefused("it leads where no token may come next and the text may not end either")
        matcher.accept(int(random.choice(allowed)))
        if matcher.ended:
            matcher = grammar.matcher()
