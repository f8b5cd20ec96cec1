"""A Hadamard rotation of heads, which spreads an outlier over all numbers of its head before they are quantised.

Queries and keys are turned alike, after their positions are in them, so that scores stay what they were; what is
attended of turned values is turned back. The rotation is its own inverse. (QuaRot, Ashkboos et al. 2024.)
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch


def rotate(heads: torch.Tensor) -> torch.Tensor:
    """`[..., dim]` times the normalised Hadamard matrix, in pieces of the largest power of two that divides dim."""
    piece = _piece(heads.shape[-1])
    matrix = _matrix(piece, heads.dtype, heads.device)
    turned: torch.Tensor = torch.matmul(heads.reshape(*heads.shape[:-1], -1, piece), matrix)
    return turned.flatten(-2)


def rotate_by_sums(heads: torch.Tensor) -> torch.Tensor:
    """The same as sums and differences of pairs, whose rounding does not depend on what lies beside a head."""
    piece, step = _piece(heads.shape[-1]), 1
    found: torch.Tensor = heads.reshape(*heads.shape[:-1], -1, piece)
    while step < piece:
        low, high = found.reshape(*found.shape[:-1], -1, 2, step).unbind(-2)
        found = torch.stack([low + high, low - high], dim=-2).flatten(-3)
        step *= 2
    return found.flatten(-2) * (1.0 / math.sqrt(piece))


def _piece(dim: int) -> int:
    return dim & -dim


@lru_cache
def _matrix(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / math.sqrt(size)).to(device, dtype)
