"""What a step costs: the numbers of `radix-runtime simulate --cost` for a model on this machine.

    python -m tests.runtime.step_cost_fit [MODEL]

Serves prompts and replies of several lengths through the real engine, with prompts beside replies, and fits the formula
of `StepCost` to what the steps took. To be run on a machine that has nothing else to do; about a minute with SmolLM2.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from runtime.models.loader import load_model
from runtime.scheduling.step_time import StepCost, StepShape
from tests.runtime.engine_harness import Harness, running

# Prompts of one turn, their tokens, and by how much the replies differ in length, so that the batch shrinks slowly.
TURNS = ((32, 300, 4), (8, 3000, 12), (2, 6000, 20))
# Steps that took longer than expected by so many times the usual error were held up by something else.
OUTLIER = 4.0
# The engine is to pace nothing, but to tell what steps are made of.
NO_BOUND_S = 1e6


def record(harness: Harness) -> list[tuple[StepShape, float]]:
    """The shapes and seconds of all steps from now on."""
    steps: list[tuple[StepShape, float]] = []
    pacer = harness.engine._scheduler._pacer
    assert pacer is not None
    pacer.stepped = lambda shape, seconds: steps.append((shape, seconds))  # type: ignore[method-assign]
    return steps


def serve(harness: Harness, seed: int, prompts: int, tokens: int, apart: int) -> None:
    dice = np.random.default_rng(seed)
    replies = [
        harness.submit(dice.integers(1000, 40_000, tokens).tolist(), max_tokens=10 + apart * i) for i in range(prompts)
    ]
    for reply in replies:
        reply.wait()


def fit(steps: list[tuple[StepShape, float]]) -> tuple[StepCost, NDArray[np.float64]]:
    """Least squares of the relative error, no number below 0.

    Returns:
        The cost, and float64[n], |expected / taken - 1| of all steps.
    """
    seconds = np.array([taken for _, taken in steps])
    shapes = np.array([(1, s.rows, s.context, s.prompt_tokens, s.prompt_pairs) for s, _ in steps], np.float64)
    # Divided by what they took, all steps are to come to 1; by their largest, columns are of one size.
    scale = shapes.max(axis=0)
    columns = shapes / scale / seconds[:, None]
    kept, used = np.ones(len(steps), bool), np.ones(5, bool)
    while True:
        numbers = np.zeros(5)
        numbers[used] = np.linalg.lstsq(columns[kept][:, used], np.ones(kept.sum()), rcond=None)[0]
        errors = np.abs(columns @ numbers - 1)
        near = errors <= OUTLIER * np.median(errors)
        if (numbers < 0).any():
            used &= numbers > 0
        elif (kept & near).sum() < kept.sum():
            kept &= near
        else:
            return StepCost(*(numbers / scale).tolist()), errors


def main(model: str) -> None:
    loaded = load_model(model, dtype="fp32", device="cpu")
    with running(loaded, num_blocks=3000, kv_fill=0.0, max_itl_s=NO_BOUND_S) as harness:
        serve(harness, 0, 2, 100, 1)
        steps = record(harness)
        for seed, turn in enumerate(TURNS, 1):
            serve(harness, seed, *turn)
    cost, errors = fit(steps)
    numbers = (cost.step, cost.row, cost.context_token, cost.prompt_token, cost.prompt_pair)
    print(f"--cost {','.join(f'{number:.3g}' for number in numbers)}")
    for name, chosen in (("of decoding only", False), ("with prompts", True)):
        of_kind = errors[[(shape.prompt_tokens > 0) is chosen for shape, _ in steps]]
        middle, most = np.percentile(of_kind, [50, 90])
        print(f"{len(of_kind)} steps {name}: off by {middle:.1%}, 90 % of them by {most:.1%} at most")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
