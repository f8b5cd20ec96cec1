"""How much of the prompts fits into a step, so that what decodes beside them is not kept waiting."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from runtime.scheduling.step_time import StepShape, prompt_pairs

# However slow a step is without them, prompts go on by so much, or they would never end.
MIN_PROMPT_TOKENS = 16
# So many steps are to keep the bound, with some to spare for what lies between a step and its reader.
_KEPT = 0.97
# Of the steps that filled their room: how soon what took longer lately is expected to, how many tell their scatter.
_PACE_HALF_LIFE_STEPS = 2
_SCATTER_STEPS = 64
# The next step is expected to have as many drafts as the last one, or this share of what was expected of that one.
_DRAFTS_KEPT = 0.9
# Of the logarithm of a step's time, before the first one.
_SCATTER_PRIOR = 0.15
# Each observation counts half as much after so many others of its kind, since machines change their pace.
_HALF_LIFE_STEPS = 20
# Of what was expected before the first step, in observations of an ordinary one.
_PRIOR_WEIGHT = 0.05


class DecayedRegression:
    """Linear least squares over a stream, older observations counting less, drawn to `prior` where they say nothing.

    Args:
        prior: float64[k], coefficients before the first observation.
    """

    def __init__(self, prior: NDArray[np.float64]) -> None:
        self._decay = 0.5 ** (1 / _HALF_LIFE_STEPS)
        self._moments = np.zeros((len(prior), len(prior)))
        self._products = np.zeros(len(prior))
        self._prior = prior
        self.coefficients = prior

    def observe(self, features: NDArray[np.float64], value: float) -> None:
        """features: float64[k], about 1 where they are as usual. Coefficients stay at or above 0."""
        self._moments = self._moments * self._decay + np.outer(features, features)
        self._products = self._products * self._decay + features * value
        weights = _PRIOR_WEIGHT * np.eye(len(self._prior))
        solved = np.linalg.solve(self._moments + weights, self._products + _PRIOR_WEIGHT * self._prior)
        self.coefficients = np.maximum(solved, 0.0)

    def expect(self, features: NDArray[np.float64]) -> float:
        return float(self.coefficients @ features)


class StepScatter:
    """How much longer than expected steps may take: by the machine's pace of the last few, and by how they scatter.

    Expectations follow their own steps too slowly for a machine that others use as well, and half of all steps take
    longer than expected. Both numbers are logarithms of ratios.
    """

    def __init__(self) -> None:
        self._newest = 1 - 0.5 ** (1 / _PACE_HALF_LIFE_STEPS)
        self._pace = 0.0
        prior = np.linspace(-_SCATTER_PRIOR, _SCATTER_PRIOR, _SCATTER_STEPS // 3)
        self._errors = deque(prior.tolist(), maxlen=_SCATTER_STEPS)
        self.factor = 1.0
        self._tell()

    def observe(self, ratio: float) -> None:
        """A step took `ratio` times what was expected; above 0."""
        error = math.log(ratio) - self._pace
        self._errors.append(error)
        self._pace += self._newest * error
        self._tell()

    def _tell(self) -> None:
        self.factor = math.exp(self._pace + float(np.quantile(self._errors, _KEPT)))


class StepPacer:
    """Learns how long steps take and cuts chunks of prompts to what is left of `max_itl_s`.

    What decodes and what the prompts add are learned apart: the first from the steps without prompts.
    """

    def __init__(self, max_itl_s: float) -> None:
        self._max_itl_s = max_itl_s
        self._scatter = StepScatter()
        # Of a step, lately: a chunk that was cut for fewer than come keeps everybody waiting, so more count at once.
        self._draft_rows = 0.0
        self._decode = DecayedRegression(np.array([0.02, 0.02, 0.02, 0.02]))
        self._prompt = DecayedRegression(np.array([0.3, 0.05]))

    def stepped(self, shape: StepShape, seconds: float) -> None:
        """A step of that shape took so long."""
        self._draft_rows = max(float(shape.draft_rows), _DRAFTS_KEPT * self._draft_rows)
        if not shape.prompt_tokens:
            self._decode.observe(_decode_features(shape), seconds)
            return
        features = np.array([shape.prompt_tokens / _USUAL_PROMPT, shape.prompt_pairs / _USUAL_PAIRS])
        decode_s = self._decode.expect(_decode_features(shape))
        expected = decode_s + self._prompt.expect(features)
        # A prompt's last chunk, of a few tokens, says little about full ones.
        if shape.rows and seconds > 0 and expected > self._aim_s / 2:
            self._scatter.observe(seconds / expected)
        self._prompt.observe(features, max(0.0, seconds - decode_s))

    @property
    def _aim_s(self) -> float:
        """What a step is to take by expectation, so that it takes no longer than the bound with what nobody expects."""
        return self._max_itl_s / self._scatter.factor

    def begin(self, decoding: StepShape) -> PromptRoom | None:
        """The room beside rows that decode; None where there are none, who could be kept waiting."""
        if not decoding.rows:
            return None
        token, pair = self._prompt.coefficients
        usual = replace(decoding, draft_rows=round(self._draft_rows))
        left = self._aim_s - self._decode.expect(_decode_features(usual))
        return PromptRoom(left, token / _USUAL_PROMPT, pair / _USUAL_PAIRS)


class PromptRoom:
    """What is left of one step for prompts, in seconds."""

    def __init__(self, left_s: float, token_s: float, pair_s: float) -> None:
        self._left_s = left_s
        self._token_s = token_s
        self._pair_s = pair_s
        self._given = 0

    def fits(self, start: int) -> int:
        """How many tokens of a prompt may be computed from position `start` on; the first chunk has a least size."""
        # token_s * n + pair_s * (n * start + n * n / 2) = left_s
        linear = max(self._token_s + self._pair_s * start, 1e-9)
        left = max(0.0, self._left_s)
        n = int(2 * left / (linear + math.sqrt(linear * linear + 2 * self._pair_s * left)))
        return n if self._given else max(n, MIN_PROMPT_TOKENS)

    def take(self, start: int, n: int) -> None:
        """A chunk was cut."""
        self._given += n
        self._left_s -= self._token_s * n + self._pair_s * prompt_pairs(start, n)

    @property
    def used_up(self) -> bool:
        return self.fits(0) < MIN_PROMPT_TOKENS


# A chunk of 256 tokens at position 4,096, and eight sequences of 2,048 tokens with two drafted tokens each.
_USUAL_PROMPT, _USUAL_PAIRS = 256, 256 * 4096
_USUAL_ROWS, _USUAL_CONTEXT, _USUAL_DRAFTS = 8, 8 * 2048, 16


def _decode_features(shape: StepShape) -> NDArray[np.float64]:
    rows, context, drafts = shape.rows / _USUAL_ROWS, shape.context / _USUAL_CONTEXT, shape.draft_rows / _USUAL_DRAFTS
    return np.array([1.0, rows, context, drafts])
