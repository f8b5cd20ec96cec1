"""Drawing from a whole vocabulary at a temperature, without filters: in two steps, a block of tokens and one of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Below it float32 scores might overflow on their way to zero.
MIN_TEMPERATURE = 1e-3
_BLOCK = 256

Floats = npt.NDArray[np.float32]


def draw(scores: Floats, temperature: float, number: float) -> int:
    """The token that a uniform `number` in [0, 1) stands for under softmax(scores / temperature).

    scores: float32 [V], of which the largest is finite; temperature at least MIN_TEMPERATURE. Weights are float32, sums
    over blocks too, and what is summed over blocks and within one float64: running sums over a vocabulary take longer
    than all the rest.
    """
    weights = scores - scores.max()
    weights *= np.float32(1.0 / temperature)
    np.exp(weights, out=weights)
    whole = len(weights) // _BLOCK * _BLOCK
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    if whole < len(weights):
        sums = np.append(sums, weights[whole:].sum())
    block, share = _place(sums, number)
    begin = block * _BLOCK
    return begin + _place(weights[begin : begin + _BLOCK], share)[0]


def _place(weights: Floats, number: float) -> tuple[int, float]:
    """The index that `number` of the weights' total falls on, and where in it, in [0, 1)."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    total = cumulative[-1]
    point = total * number
    # Rounding may lift the product to the total: then the last one that has any weight is meant.
    index = int(cumulative.searchsorted(point, side="right" if point < total else "left"))
    inside = (point - (cumulative[index] - weights[index])) / weights[index]
    return index, min(max(float(inside), 0.0), np.nextafter(1.0, 0.0))
