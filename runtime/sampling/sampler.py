"""Choosing the next token of each running choice from its row of logits."""

from __future__ import annotations

import functools
import math
import secrets
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from runtime.execution.logit_rows import BadLogits, LogitRows
from runtime.sampling.block_draw import MIN_TEMPERATURE, draw
from runtime.sampling.penalties import Penalties
from runtime.sampling.sampling_params import SamplingParams

# Transformers' warpers ask for the token history and do not read it.
_NO_HISTORY = cast(torch.LongTensor, torch.empty((1, 0), dtype=torch.int64))
# A nucleus is looked for among tokens at least this share as likely as the likeliest, then the square of it, and so on.
_NUCLEUS_STEP = 32.0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One chosen token.

    `logprob` is its natural log-probability under the raw logits of the model: before a grammar's mask, bias,
    penalties, temperature and filters, so it does not depend on how the request samples. None unless the request asked
    for log-probabilities.
    `top` are the `(token id, logprob)` pairs of the likeliest tokens, likeliest first; empty unless asked for.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


class TokenSampler:
    """How one choice of one request picks its tokens.

    It owns its random stream, and a token takes exactly one number from it. So the same seed gives the same tokens
    from the same logits, whatever else runs in the batch. Without a seed the stream starts from the system's entropy.
    """

    def __init__(
        self, params: SamplingParams, prompt: npt.NDArray[np.int32], choice_index: int, vocab_size: int
    ) -> None:
        """`prompt` is int32 [T] token ids; `params` have been validated; logits rows hold `vocab_size` entries."""
        self._vocab_size = vocab_size
        self._penalties = Penalties(params, prompt, vocab_size)
        self._greedy = params.temperature == 0.0
        self._top_logprobs = params.top_logprobs
        self._wants_logprobs = params.logprobs or params.top_logprobs > 0
        self._temperature = float(params.temperature)
        self._top_k = TopKLogitsWarper(params.top_k) if 0 < params.top_k < vocab_size else None
        self._top_p = float(params.top_p)
        self._min_p = MinPLogitsWarper(params.min_p) if params.min_p > 0.0 else None
        seed = secrets.randbits(64) if params.seed is None else params.seed
        # Not a torch.Generator: the CPU one reads only the low 32 bits of its seed.
        self._random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(choice_index,))))

    @property
    def plain_greedy(self) -> bool:
        """True when the largest raw logit is the answer and nothing else is asked for."""
        return self._greedy and not self._wants_logprobs and not self._penalties.active

    def choose(
        self, row: torch.Tensor, output: list[int], allowed: npt.NDArray[np.bool_] | None = None
    ) -> SampledToken:
        """Choose a token from float32 [vocab] raw logits on the CPU, whose largest value is finite.

        `output` are the tokens that this choice wrote so far. Of tokens that are not `allowed`, bool [vocab], none is
        chosen; the others keep their odds.
        """
        scores = self._scores(row, output)
        if allowed is not None:
            # NumPy, as below: torch's threads take longer to wake than a row takes.
            scores = torch.from_numpy(np.where(allowed, scores.numpy(), np.float32(-math.inf)))
        token = int(scores.argmax()) if self._greedy else self._draw(scores)
        if not self._wants_logprobs:
            return SampledToken(token, None, ())
        logprobs = torch.log_softmax(row, dim=-1)
        best = torch.topk(logprobs, min(self._top_logprobs, self._vocab_size))
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return SampledToken(token, float(logprobs[token]), top)

    def distribution(self, row: torch.Tensor, output: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """What `choose` would draw from: int64 [K] token ids in rising order and their float64 [K] probabilities."""
        scores = self._scores(row, output)
        if self._greedy:
            return scores.argmax()[None], torch.ones(1).double()
        token_ids, kept = self._filtered(scores)
        return token_ids, torch.softmax(kept, dim=-1)

    def _scores(self, row: torch.Tensor, output: list[int]) -> torch.Tensor:
        return self._penalties.apply(row[None], output) if self._penalties.active else row[None]

    def _draw(self, scores: torch.Tensor) -> int:
        if self._top_k is None and self._top_p >= 1.0 and self._min_p is None and self._temperature >= MIN_TEMPERATURE:
            return draw(scores[0].numpy(), self._temperature, self._random.random())
        token_ids, scores = self._filtered(scores)
        # The largest score is 0, so that nothing overflows, and nothing needs to sum to 1.
        cumulative = torch.cumsum(torch.from_numpy(np.exp(scores.numpy())), dim=-1).numpy()
        total = cumulative[-1]
        point = total * self._random.random()
        # Rounding may lift the product to the total: then the last token that has any mass is meant.
        drawn = cumulative.searchsorted(point, side="right" if point < total else "left")
        return int(token_ids[drawn])

    def _filtered(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids that the filters leave, int64 [K] in rising order, and their float64 [K] scores, 0 the largest."""
        token_ids = _all_ids(scores.shape[-1])
        # NumPy, because torch would part a row among its threads, and waking them takes longer than the row.
        values = scores.numpy().astype(np.float64)
        # The largest score becomes 0, so that no temperature, however small, makes it overflow.
        values -= values.max()
        with np.errstate(over="ignore"):
            values /= self._temperature
        scores = torch.from_numpy(values)
        if self._top_k is not None:
            token_ids, scores = _finite(token_ids, self._top_k(_NO_HISTORY, scores))
        if self._top_p < 1.0:
            token_ids, scores = self._nucleus(token_ids, scores)
        if self._min_p is not None:
            token_ids, scores = _finite(token_ids, self._min_p(_NO_HISTORY, scores))
        return token_ids, scores[0]

    def _nucleus(self, token_ids: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Sorting a whole vocabulary takes milliseconds, so only tokens that may be in the nucleus are sorted, and top_p
        # is restated as a share of the mass that they hold. Outside for certain are tokens so unlikely that all of them
        # together stay below 1 - top_p; and whatever is less likely than others that hold top_p together.
        probs = torch.softmax(scores[0], dim=-1).numpy()
        peak = probs.max()
        # The likeliest is always inside, also where rounding puts the bound on it.
        likely = np.flatnonzero(probs >= min((1.0 - self._top_p) / len(probs), peak))
        held, bound = probs[likely], peak
        while True:
            bound /= _NUCLEUS_STEP
            inside = held >= bound
            mass = float(held[inside].sum())
            if mass >= self._top_p or inside.all():
                break
        kept = torch.from_numpy(likely[inside])
        warper = TopPLogitsWarper(min(1.0, self._top_p / mass))
        return _finite(token_ids[kept], warper(_NO_HISTORY, scores[:, kept]))


@functools.lru_cache(maxsize=4)
def _all_ids(vocab_size: int) -> torch.Tensor:
    return torch.arange(vocab_size)


def _finite(token_ids: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.from_numpy(np.flatnonzero(scores[0].numpy() > -math.inf))
    return token_ids[kept], scores[:, kept]


def sample_rows(
    rows: LogitRows, samplers: list[TokenSampler], outputs: list[list[int]]
) -> list[SampledToken | Exception]:
    """One token for each row; the error where its choice failed.

    Plain greedy rows take the likeliest token; the others are copied to the CPU together and chosen one by one.
    Raises BadLogits, before any sampler draws, naming the rows; the other rows may be sampled in a second call.
    """
    if rows.bad:
        raise BadLogits(rows.bad)
    chosen: list[SampledToken | Exception] = [SampledToken(token, None, ()) for token in rows.best]
    special = [row for row, sampler in enumerate(samplers) if not sampler.plain_greedy]
    for row, logits in zip(special, _on_cpu(rows.logits.detach(), special), strict=True):
        try:
            chosen[row] = samplers[row].choose(logits, outputs[row], rows.allowed.get(row))
        except Exception as error:
            chosen[row] = error
    return chosen


def _on_cpu(logits: torch.Tensor, rows: list[int]) -> list[torch.Tensor]:
    """These rows in float32. Those of another device come in one copy, those that are there already in none."""
    if logits.device.type == "cpu" or not rows:
        return [logits[row].float() for row in rows]
    return list(logits[rows].to("cpu", torch.float32))
