"""Products with weights in each format, in one process and in turn.

`python -m tests.runtime.native.weights_speed`: the products of 30 layers of SmolLM2's shape with random weights. To be
run on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from runtime.native.product import NativeProduct
from runtime.native.weights import Format
from tests.runtime.native.test_weights import matrix

_LAYERS = 30
# Outputs and inputs of a layer's products.
_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
_ROWS = (1, 2, 4, 8, 12, 16, 20, 30, 60, 130, 300, 512)


def layers(kind: Format) -> list[NativeProduct]:
    weights = [matrix(kind, *shape) for shape in _SHAPES]
    return [NativeProduct(weight, None) for _ in range(_LAYERS) for weight in weights]


def milliseconds(products: list[NativeProduct], inputs: dict[int, torch.Tensor]) -> float:
    began = time.perf_counter()
    for product in products:
        product(inputs[product.panels.inputs])
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=3, help="turns of each; a few rows get four times as many")
    rounds = arguments.parse_args().rounds
    models = {kind: layers(kind) for kind in Format}
    for kind, products in models.items():
        taken = sum(product.panels.data.numel() for product in products) / 2**20
        print(f"{kind.title}: {taken:.0f} MiB")
    print("rows", *(kind.title for kind in Format), sep="\t")
    for rows in _ROWS:
        inputs = {width: torch.randn(rows, width) for width in (576, 1536)}
        times: dict[Format, list[float]] = {kind: [] for kind in models}
        for turn in range(-1, rounds * (4 if rows <= 60 else 1)):
            for kind, products in models.items():
                took = milliseconds(products, inputs)
                times[kind] += [took] if turn >= 0 else []
        print(rows, *(f"{median(times[kind]):.1f}" for kind in Format), sep="\t", flush=True)


if __name__ == "__main__":
    main()
