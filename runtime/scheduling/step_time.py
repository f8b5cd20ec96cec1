"""What a step is made of, as far as its duration goes, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.request import Run


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step computes.

    Attributes:
        rows: sequences that decode.
        context: tokens that they attend to, together.
        prompt_tokens: of all chunks.
        prompt_pairs: pairs of a prompt token and a token that it attends to.
        draft_rows: tokens that drafts add to the rows.
    """

    rows: int = 0
    context: int = 0
    prompt_tokens: int = 0
    prompt_pairs: int = 0
    draft_rows: int = 0

    @staticmethod
    def of(work: Iterable[tuple[Run, int]]) -> StepShape:
        """The shape of a plan's work, before it is committed."""
        rows = context = tokens = pairs = 0
        for run, n in work:
            start = run.seq.length if run.seq is not None else 0
            if run.prefilling:
                tokens += n
                pairs += prompt_pairs(start, n)
            else:
                rows += 1
                context += start
        return StepShape(rows, context, tokens, pairs)


def prompt_pairs(start: int, n: int) -> int:
    """Pairs of `n` tokens from position `start` on with what they attend to."""
    return n * start + n * (n + 1) // 2


@dataclass(frozen=True, slots=True)
class StepCost:
    """A linear model of a step's duration; seconds for each unit of the shape, and for any step."""

    step: float
    row: float
    context_token: float
    prompt_token: float
    prompt_pair: float

    def seconds(self, shape: StepShape) -> float:
        """How long a step of that shape takes."""
        return (
            self.step
            + self.row * shape.rows
            + self.context_token * shape.context
            + self.prompt_token * shape.prompt_tokens
            + self.prompt_pair * shape.prompt_pairs
        )
