"""Layers whose result for a token has the same bits whatever other tokens share the pass.

A matrix product picks its kernel by the number of rows, and kernels add in different orders; an activation treats the
last few numbers of an array, which fill no vector register, by other instructions. Both let a token's neighbours decide
its rounding. Here a product always has a number of rows for which this machine's library was seen, at load, to give
each row the same bits, and an activation never meets an unfilled register. What else a decoder does (norms, rotations,
residual sums) works on one token at a time; the probe of `runtime.models.bit_probe` proves it for the model at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2CLS

from runtime.errors import ModelRefused
from runtime.models.linear_groups import GroupMember, LinearGroup
from runtime.models.packed_product import Product

ACTIVATIONS: tuple[type[nn.Module], ...] = tuple(
    {entry[0] if isinstance(entry, tuple) else entry for entry in cast(Any, ACT2CLS).values()}
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


# The first that holds is taken. oneDNN's packed products hold at any number of rows but one, MKL's at multiples of 4;
# the last two always use one and the same number.
_TILES = (*(RowTile(multiple, 512) for multiple in (1, 2, 4, 8, 16, 32)), RowTile(16, 16), RowTile(64, 64))


def on_tiles(product: Product, tile: RowTile) -> Product:
    """The same product `[..., inputs]` to `[..., outputs]`, on numbers of rows that do not show in the result."""

    def tiled(inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        count = len(rows)
        short = -count % tile.multiple
        if short:
            rows = functional.pad(rows, (0, 0, 0, short))
        if len(rows) <= tile.largest:
            out = product(rows)
        else:
            out = torch.cat([product(piece) for piece in torch.split(rows, tile.largest)])
        return out[:count].view(*inputs.shape[:-1], out.shape[-1])

    return tiled


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
    """Do this to every product of `group_linears` and every activation of a network, in place.

    Raises ModelRefused off the CPU, for a linear layer that is in no group, or where no number of rows serves one.
    """
    first = next(network.parameters())
    if first.device.type != "cpu":
        raise ModelRefused(f"deterministic answers are to be had on the CPU only, and the model is on {first.device}")
    tiles: dict[tuple[int, int], RowTile] = {}
    groups: set[LinearGroup] = set()
    for name, module in list(network.named_modules()):
        if isinstance(module, GroupMember) and module.group not in groups:
            groups.add(module.group)
            shape = (module.in_features, sum(member.out_features for member in module.group.members))
            if shape not in tiles:
                tiles[shape] = _tile(name, module.group, *shape, first.dtype)
            module.group.change_product(partial(on_tiles, tile=tiles[shape]))
        elif isinstance(module, nn.Linear):
            raise ModelRefused(f"{name} is a linear layer of a kind whose rounding is not known to be its rows' own")
        elif isinstance(module, ACTIVATIONS):
            network.set_submodule(name, RowInvariantActivation(module))


def _tile(name: str, product: Product, inputs: int, outputs: int, dtype: torch.dtype) -> RowTile:
    for tile in _TILES:
        if holds(product, tile, inputs, dtype):
            return tile
    raise ModelRefused(
        f"{name} ({inputs} to {outputs}, {dtype}): no number of rows was found at which this machine's matrix products "
        "give a row the same bits in every place"
    )


def holds(product: Product, tile: RowTile, inputs: int, dtype: torch.dtype) -> bool:
    """Whether a row has the same bits in every place of a product of every size that the tile allows (a sample)."""
    multiple, largest = tile.multiple, tile.largest
    rows = torch.randn(largest, inputs, generator=torch.Generator().manual_seed(11)).to(dtype)
    sizes = [*range(multiple, min(largest, 32) + 1, multiple), 64, 128, 256, largest - multiple]
    with torch.inference_mode():
        wanted = product(rows)
        for size in (size for size in sizes if multiple <= size <= largest):
            # Turned by an odd number of rows, so that each one meets other neighbours in another place.
            first = (largest - size) // 2
            order = first + torch.arange(size).roll(size // 2 + 1)
            if not torch.equal(product(rows[order]), wanted[order]):
                return False
    return True
