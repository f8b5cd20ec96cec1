"""Layers whose result for a token has the same bits whatever other tokens share the pass.

A matrix product picks its kernel by the number of rows, and kernels add in different orders; an activation treats the
last few numbers of an array, which fill no vector register, by other instructions. Both let a token's neighbours decide
its rounding. Here a product always has a number of rows for which this machine's library was seen, at load, to give
each row the same bits, and an activation never meets an unfilled register. What else a decoder does (norms, rotations,
residual sums) works on one token at a time; the probe of `runtime.bit_probe` proves it for the model at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2CLS

from runtime.errors import ModelRefused

ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
)

# Numbers in two vector registers of any CPU so far, in the smallest type: what one turn of an unrolled loop takes.
_LANES = 64
# Torch hands out work to its threads in pieces of at least so many numbers; up to here one thread does it all.
_SERIAL = 32768


@dataclass(frozen=True)
class RowTile:
    """Products run on multiples of `multiple` rows, at most `largest` at once."""

    multiple: int
    largest: int


# The fastest that holds is taken; the last ones always use one and the same number of rows.
_TILES = (RowTile(4, 256), RowTile(8, 256), RowTile(16, 256), RowTile(32, 256), RowTile(16, 16), RowTile(64, 64))


class RowInvariantLinear(nn.Module):
    """A linear layer over the parameters of another one, on numbers of rows that do not show in the result."""

    def __init__(self, linear: nn.Linear, tile: RowTile) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.tile = tile

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.reshape(-1, self.in_features)
        count = len(rows)
        short = -count % self.tile.multiple
        if short:
            rows = functional.pad(rows, (0, 0, 0, short))
        if len(rows) <= self.tile.largest:
            out = functional.linear(rows, self.weight, self.bias)
        else:
            pieces = torch.split(rows, self.tile.largest)
            out = torch.cat([functional.linear(piece, self.weight, self.bias) for piece in pieces])
        return out[:count].view(*inputs.shape[:-1], self.out_features)


class RowInvariantActivation(nn.Module):
    """An elementwise function that treats every number alike."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return in_full_vectors(self.function, inputs)


def in_full_vectors(function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """`function`, which is elementwise, of `inputs` such that no number's place decides how it is computed."""
    flat = inputs.reshape(-1)
    count = len(flat)
    short = -count % _LANES
    if short:
        flat = functional.pad(flat, (0, short))
    out = (
        function(flat) if len(flat) <= _SERIAL else torch.cat([function(piece) for piece in torch.split(flat, _SERIAL)])
    )
    return out[:count].view(inputs.shape)


def make_row_invariant(network: nn.Module) -> None:
    """Put these layers in place of the network's linear layers and activations.

    Raises ModelRefused off the CPU, or where no number of rows serves a layer.
    """
    device = next(network.parameters()).device
    if device.type != "cpu":
        raise ModelRefused(f"deterministic answers are to be had on the CPU only: {device} has no such kernels here")
    tiles: dict[object, RowTile] = {}
    for name, module in list(network.named_modules()):
        if type(module) is nn.Linear:
            weight = module.weight
            kind = (weight.shape, weight.stride(), weight.dtype, module.bias is None)
            if kind not in tiles:
                tiles[kind] = _tile(name, module)
            network.set_submodule(name, RowInvariantLinear(module, tiles[kind]))
        elif isinstance(module, ACTIVATIONS):
            network.set_submodule(name, RowInvariantActivation(module))


def _tile(name: str, linear: nn.Linear) -> RowTile:
    for tile in _TILES:
        if _holds(linear, tile):
            return tile
    raise ModelRefused(
        f"{name} ({linear.in_features} to {linear.out_features}, {linear.weight.dtype}): no number of rows was found "
        "at which this machine's matrix products give a row the same bits in every place"
    )


def _holds(linear: nn.Linear, tile: RowTile) -> bool:
    """Whether a row has the same bits in every place of a product of every size that the tile allows."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(tile.largest, linear.in_features, generator=generator).to(linear.weight.dtype)
    sizes = sorted({*range(tile.multiple, 33, tile.multiple), 64, 128, tile.largest - tile.multiple, tile.largest})
    with torch.inference_mode():
        alone = torch.cat([linear(rows) for rows in torch.split(inputs, tile.multiple)])
        for size in sizes:
            if not tile.multiple <= size <= tile.largest:
                continue
            # Turned by an odd number of rows, so that each one meets other neighbours in another place.
            order = torch.arange(size).roll(size // 2 + 1)
            if not torch.equal(linear(inputs[order]), alone[order]):
                return False
    return True
