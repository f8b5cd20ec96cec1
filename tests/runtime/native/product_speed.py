"""Forward passes with our own products, packed and in float32, and with oneDNN's, in one process and in turn.

`python -m tests.runtime.native.product_speed`: three copies of SmolLM2, which differ in nothing else. To be run on a
machine that has nothing else to do. weights_speed.py has the products alone.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from unittest.mock import Mock, patch

import numpy as np

from runtime.execution.batch import BatchItem
from runtime.execution.model_runner import ModelRunner
from runtime.models import packed_product
from runtime.models.loader import load_model
from runtime.native.compiler import NativeUnavailable
from runtime.native.weights import SWITCH

_BLOCK = 16
_POOL_BLOCKS = 1400
# Name, sequences, tokens of each, tokens before them.
_CASES = (
    ("1 token behind 2,000", 1, 1, 2000),
    ("4 sequences", 4, 1, 2000),
    ("8 sequences", 8, 1, 2000),
    ("4 behind 3,500", 4, 1, 3500),
    ("4 drafts of 8", 4, 8, 2000),
    ("16 tokens", 1, 16, 2000),
    ("30 behind 3,000", 1, 30, 3000),
    ("100 behind 3,000", 1, 100, 3000),
    ("256 tokens", 1, 256, 2000),
    ("512 behind 2,048", 1, 512, 2048),
)


def runner(*, own: bool, packed: bool = False) -> ModelRunner:
    """SmolLM2 with our products or oneDNN's, and weights packed or in float32."""
    refuse = Mock(__name__="_native", side_effect=NativeUnavailable("oneDNN is to serve"))
    with (
        patch.object(packed_product, "_native", packed_product._native if own else refuse),
        patch.dict(os.environ, {SWITCH: "on" if packed else "off"}),
    ):
        return ModelRunner(load_model("smollm2", dtype="float32"), _POOL_BLOCKS, _BLOCK)


def items(sequences: int, tokens: int, before: int) -> list[BatchItem]:
    """Random tokens at the end of contexts of their own."""
    dice = np.random.default_rng(0)
    blocks = -(-(before + tokens) // _BLOCK)
    return [
        BatchItem(
            dice.integers(0, 40_000, tokens).astype(np.int32),
            before,
            np.arange(i * blocks, (i + 1) * blocks, dtype=np.int32),
        )
        for i in range(sequences)
    ]


def milliseconds(run: ModelRunner, batch: list[BatchItem]) -> float:
    """One forward pass."""
    laid_out = run.prepare(batch)
    began = time.perf_counter()
    run.run(laid_out, laid_out.logit_rows)
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=4, help="turns of each; short passes get nine times as many")
    rounds = arguments.parse_args().rounds
    runners = {"packed": runner(own=True, packed=True), "float32": runner(own=True), "oneDNN": runner(own=False)}
    for name, sequences, tokens, before in _CASES:
        batch = items(sequences, tokens, before)
        short = tokens <= 16
        times: dict[str, list[float]] = {which: [] for which in runners}
        for turn in range(-1, rounds * (3 if short else 1)):
            for which in list(runners)[:: 1 if turn % 2 else -1]:
                took = [milliseconds(runners[which], batch) for _ in range(3 if short else 1)]
                times[which] += took if turn >= 0 else []
        took_ms = {which: median(times[which]) for which in runners}
        told = "  ".join(f"{which} {ms:6.1f} ms" for which, ms in took_ms.items())
        print(f"{name:22} {told}  packed / float32 {took_ms['packed'] / took_ms['float32']:.2f}", flush=True)


if __name__ == "__main__":
    main()
