"""Teacher-forced passes of the same tokens over pools of several precisions, side by side.

Every pool computes a chunk before any computes the next, so that the exact logits need not be kept: what they are
compared with is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from runtime.execution.batch import BatchItem
from runtime.execution.model_runner import ModelRunner
from runtime.gpu_check.peaks import wait
from runtime.models.loaded_model import LoadedModel

BLOCK = 16
CHUNK = 256
DECODE_STEPS = 24


@dataclass
class Score:
    """Sums over the predictions of one pool on one text: nats of what came, divergence from the exact pool's, and how
    often both would say the same next token."""

    tokens: int = 0
    nats: float = 0.0
    divergence: float = 0.0
    agreed: int = 0

    def add(self, other: Score) -> None:
        self.tokens += other.tokens
        self.nats += other.nats
        self.divergence += other.divergence
        self.agreed += other.agreed

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.tokens)

    def report(self, exact: Score) -> dict[str, float]:
        return {
            "tokens": self.tokens,
            "perplexity": self.perplexity,
            "perplexity_delta": self.perplexity / exact.perplexity - 1,
            "kl": self.divergence / self.tokens,
            "top1": self.agreed / self.tokens,
        }


@dataclass
class Lane:
    """One precision: its pool, and what was seen of it.

    decode_s: seconds of single tokens, by the tokens of their context.
    """

    name: str
    loaded: LoadedModel
    runner: ModelRunner
    scores: dict[tuple[str, int], Score] = field(default_factory=dict)
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    decode_s: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, loaded: LoadedModel, tokens: int) -> Lane:
        return cls(name, loaded, ModelRunner(loaded, -(-tokens // BLOCK), BLOCK))

    def compute(self, tokens: np.ndarray, start: int, rows: int) -> torch.Tensor:
        """Float32 logits of the last `rows` of these tokens, which come behind `start` others in the pool.

        They are there when it returns: a GPU is waited for.
        """
        table = np.arange(-(-(start + len(tokens)) // BLOCK), dtype=np.int32)
        logits = self.runner.forward([BatchItem(tokens, start, table, rows)])
        wait(logits.device)
        return logits


def compare(lanes: Sequence[Lane], kind: str, tokens: np.ndarray) -> None:
    """Run int32 tokens through every lane; the first is what the others are compared with."""
    length = len(tokens)
    for at in range(0, length, CHUNK):
        chunk = tokens[at : at + CHUNK]
        following = torch.from_numpy(tokens[at + 1 : at + 1 + len(chunk)].astype(np.int64))
        following = following.to(lanes[0].loaded.model.device)
        exact: torch.Tensor | None = None
        for lane in lanes:
            began = time.perf_counter()
            logits = lane.compute(chunk, at, len(chunk))
            lane.prefill_s += time.perf_counter() - began
            lane.prefill_tokens += len(chunk)
            found = torch.log_softmax(logits[: len(following)], -1)
            exact = found if exact is None else exact
            lane.scores.setdefault((kind, length), Score()).add(_score(found, exact, following))


def _score(found: torch.Tensor, exact: torch.Tensor, following: torch.Tensor) -> Score:
    return Score(
        len(following),
        -float(found.gather(1, following[:, None]).double().sum()),
        float((exact.exp() * (exact - found)).sum(-1).double().sum()) if found is not exact else 0.0,
        int((found.argmax(-1) == exact.argmax(-1)).sum()),
    )


def time_decoding(lanes: Sequence[Lane], tokens: np.ndarray) -> None:
    """Time single tokens behind a context that lies in the pools already; lanes take turns, so that all see the same
    machine."""
    for step in range(DECODE_STEPS):
        at = len(tokens) - DECODE_STEPS + step
        for lane in lanes:
            began = time.perf_counter()
            lane.compute(tokens[at : at + 1], at, 1)
            lane.decode_s.setdefault(len(tokens), []).append(time.perf_counter() - began)
