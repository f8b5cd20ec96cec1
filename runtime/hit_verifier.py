"""Checks live hits: what a request answered over cached KV against the same tokens computed from nothing.

The engine's thread samples requests that hit, and when it has nothing else to do computes them again, a few tokens at a
time, in a pool of its own. Neither the tree, nor its pool, nor any of its books notices.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.attention.deterministic import DeterministicAttention
from runtime.execution.batch import BatchItem
from runtime.execution.model_runner import ModelRunner
from runtime.models.loaded_model import LoadedModel
from runtime.models.probe import HALF_TOLERANCE, TOLERANCE
from runtime.request import Run

log = logging.getLogger(__name__)

Outcome = Literal["equal", "close", "mismatch", "skipped"]

# Tokens computed before the engine looks for live work again: what a request that comes meanwhile waits for at most.
CHUNK = 16
# Samples that wait for an idle moment; each holds a row of logits.
MAX_WAITING = 16
# Tokens of the reply whose choice is checked too.
MAX_REPLY = 8


@dataclass
class VerifyBooks:
    """Results since the start. Only the engine's thread writes them.

    Attributes:
        outcomes: verified hits. equal: the logits behind the prompt have the same bits. close: they differ by rounding.
            mismatch: by more, or at all in deterministic mode. skipped: never computed, for want of an idle moment or
            of memory.
        tokens: of replies, whose choice was checked.
        flips: of these, greedy ones that would have been another token without the cache.
        largest_difference: of any logit behind a prompt.
    """

    outcomes: dict[Outcome, int] = field(default_factory=lambda: {"equal": 0, "close": 0, "mismatch": 0, "skipped": 0})
    tokens: int = 0
    flips: int = 0
    largest_difference: float = 0.0


@dataclass(frozen=True)
class _Sample:
    """A request that hit: its choice, and float32 `[vocab]` logits behind its prompt."""

    run: Run
    logits: torch.Tensor


class _Recomputation:
    """A sample on its way through a pool of its own."""

    def __init__(self, loaded: LoadedModel, sample: _Sample, block_size: int) -> None:
        self.sample = sample
        prompt = sample.run.request.prompt_tokens
        reply = sample.run.output.token_ids[:MAX_REPLY]
        self._first = prompt - 1
        # The last token of the reply is checked, not computed.
        self._tokens: NDArray[np.int32] = sample.run.tokens[: prompt + len(reply) - 1].copy()
        blocks = -(-len(self._tokens) // block_size)
        self._runner = ModelRunner(loaded, blocks, block_size)
        self._table = np.arange(blocks, dtype=np.int32)
        self._computed = 0
        self.rows: list[torch.Tensor] = []

    def advance(self) -> bool:
        """Compute the next tokens; True when all are."""
        start = self._computed
        end = min(start + CHUNK, len(self._tokens))
        wanted = max(0, end - max(start, self._first))
        logits = self._runner.forward([BatchItem(self._tokens[start:end], start, self._table, wanted)])
        self.rows += list(logits.cpu().clone())
        self._computed = end
        return end == len(self._tokens)


class HitVerifier:
    """Samples a share of the requests that hit, and verifies one after the other. Lives on the engine's thread."""

    def __init__(self, loaded: LoadedModel, share: float, block_size: int) -> None:
        self.books = VerifyBooks()
        self._loaded = loaded
        self._share = share
        self._block_size = block_size
        self._exact = loaded.info.attention_backend == DeterministicAttention.name
        self._limit = TOLERANCE.get(loaded.model.dtype, HALF_TOLERANCE)
        self._random = random.Random()
        self._waiting: deque[_Sample] = deque()
        self._current: _Recomputation | None = None

    @property
    def pending(self) -> int:
        """Samples that are not verified yet."""
        return len(self._waiting) + (self._current is not None)

    def saw(self, run: Run, logits: torch.Tensor) -> None:
        """Take note of a choice that is about to get its first token from these `[vocab]` logits."""
        hit = run.request.cached_tokens > 0 and run.output.index == 0 and not run.output.token_ids
        if not hit or self._random.random() >= self._share:
            return
        if len(self._waiting) == MAX_WAITING:
            self.books.outcomes["skipped"] += 1
            return
        self._waiting.append(_Sample(run, logits.float().cpu().clone()))

    def work(self) -> bool:
        """Spend one chunk on a sample whose request has ended; False when there is none."""
        if self._current is None and not self._waiting:
            return False
        try:
            if self._current is None:
                self._current = _Recomputation(self._loaded, self._waiting.popleft(), self._block_size)
            if self._current.advance():
                self._compare(self._current)
                self._current = None
        except Exception:
            # Memory for the second pool, most likely. Verification may fail; serving goes on.
            log.exception("a hit could not be verified")
            self.books.outcomes["skipped"] += 1
            self._current = None
        return True

    def _compare(self, done: _Recomputation) -> None:
        run, hit, cold = done.sample.run, done.sample.logits, done.rows[0]
        reply = run.output.token_ids[: len(done.rows)]
        chosen = reply if run.sampler.plain_greedy else [int(hit.argmax())]
        flips = sum(int(row.argmax()) != token for row, token in zip(done.rows, chosen, strict=False))
        difference = float((cold - hit).abs().max())
        relative = float((cold - hit).norm() / cold.norm().clamp_min(1e-6))
        equal = torch.equal(cold, hit)
        outcome: Outcome = "equal" if equal else "close" if relative <= self._limit and not self._exact else "mismatch"
        books = self.books
        books.outcomes[outcome] += 1
        books.tokens += len(chosen)
        books.flips += flips
        books.largest_difference = max(books.largest_difference, difference)
        if outcome == "mismatch":
            log.error(
                "request %s: a hit of %d of %d prompt tokens answers otherwise than without the cache: "
                "a logit differs by %.3g (all of them by %.2g, relative; the limit is %g), %d of %d tokens flip",
                run.request.job.request_id,
                run.request.cached_tokens,
                run.request.prompt_tokens,
                difference,
                relative,
                0 if self._exact else self._limit,
                flips,
                len(chosen),
            )
