"""The grammar of one choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.errors import EngineFailed
from runtime.grammar.interface import CompiledGrammar
from runtime.grammar.masks import Mask, MaskBuffer
from runtime.grammar.spec import GrammarRefused

# Of the processor's time, on average, before a grammar is given up; and over how many masks.
SLOWEST_MASK_S = 0.03
_PATIENCE = 8


@dataclass(frozen=True)
class JobGrammar:
    """The grammar of a request.

    Attributes:
        lazy: text is free until something in it begins a pattern. In free text the tokens that stand for no text are
            as free as without a grammar.
        past_end: end tokens do not end the choice (ignore_eos). A lazy grammar passes them by; any other allows them
            only where nothing else may come.
        textless, end_tokens: of the library.
    """

    compiled: CompiledGrammar
    lazy: bool
    past_end: bool
    textless: frozenset[int]
    end_tokens: frozenset[int]

    def start(self) -> RunGrammar:
        """For a choice that has written nothing yet."""
        return RunGrammar(self)


class RunGrammar:
    """Follows one choice through its grammar.

    The engine's thread accepts and trims, and in between one other thread may ask for masks: never both at once.
    """

    def __init__(self, job: JobGrammar) -> None:
        self._matcher = job.compiled.matcher()
        self._found = 0
        self._spent = 0.0
        self._withheld = _indices(job.end_tokens) if job.past_end and not job.lazy else None
        # Where text is free, these change nothing.
        passed = job.textless | (job.end_tokens if job.past_end else frozenset())
        self._passed = passed if job.lazy else frozenset()
        self._passed_ids = _indices(job.textless | job.end_tokens) if job.lazy else None

    def accept(self, token_id: int) -> None:
        """Take the chosen token. Raises EngineFailed where the grammar does not allow it."""
        if self._step(token_id) is None:
            raise EngineFailed(f"token {token_id} was chosen against the grammar")

    def trim(self, draft: Sequence[int]) -> int:
        """How many leading tokens of a draft the grammar allows."""
        allowed, steps = self._walk(draft)
        self._matcher.rollback(steps)
        return allowed

    def masks(self, draft: Sequence[int], buffer: MaskBuffer) -> list[Mask | None]:
        """What may be chosen now, and after each token of a draft that was trimmed; None where that is anything."""
        found = [self._mask(buffer)]
        steps = 0
        for token_id in draft:
            taken = self._step(token_id)
            if taken is None:
                break
            steps += taken
            found.append(self._mask(buffer))
        self._matcher.rollback(steps)
        return found

    def took(self, seconds: float, masks: int) -> None:
        """Note what masks cost. Raises GrammarRefused where they are slow on the whole: all others wait for them."""
        self._found += masks
        self._spent += seconds
        if self._found >= _PATIENCE and self._spent > self._found * SLOWEST_MASK_S:
            each = self._spent / self._found
            raise GrammarRefused(f"finding its next tokens takes {each * 1000:.0f} ms each time, on the whole")

    def _walk(self, tokens: Sequence[int]) -> tuple[int, int]:
        """How many tokens were taken, and how many steps of the matcher that made."""
        steps = 0
        for index, token_id in enumerate(tokens):
            taken = self._step(token_id)
            if taken is None:
                return index, steps
            steps += taken
        return len(tokens), steps

    def _step(self, token_id: int) -> int | None:
        """Take a token: the steps that the matcher made, None where it refuses."""
        if token_id in self._passed and self._matcher.complete:
            return 0
        return 1 if self._matcher.accept(token_id) else None

    def _mask(self, buffer: MaskBuffer) -> Mask | None:
        if self._matcher.ended:
            return None
        mask = buffer.fill(self._matcher)
        if self._passed_ids is not None and self._matcher.complete:
            mask[self._passed_ids] = True
        elif self._withheld is not None:
            ends = mask[self._withheld].copy()
            mask[self._withheld] = False
            if not mask.any():
                mask[self._withheld] = ends
        return None if mask.all() else mask


def _indices(tokens: frozenset[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sorted(tokens), dtype=np.int64)
