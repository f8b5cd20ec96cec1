"""Products with a weight matrix on CPU through oneDNN, which keeps the matrix in blocks of its own choice.

The packed copy replaces the matrix: the same numbers in another order, and results equal to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.nn import functional

log = logging.getLogger(__name__)

Product = Callable[[torch.Tensor], torch.Tensor]

# Rows that oneDNN is told to choose its blocks for. Measured: what it chooses serves 1 to 512 rows alike.
_ROWS = 8
# Relative difference of a product that both ways compute, beyond which the packed one is not trusted.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def plain_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """`x [..., inputs]` to `x weight^T + bias`; weight is `[outputs, inputs]`."""
    return lambda x: functional.linear(x, weight, bias)


def packed_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product | None:
    """The same from a packed copy; None where oneDNN does not take it or computes something else."""
    limit = _TOLERANCE.get(weight.dtype)
    if weight.device.type != "cpu" or limit is None or not torch._C._has_mkldnn:
        return None
    multiply = torch.ops.mkldnn._linear_pointwise
    try:
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)

        def product(x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = multiply(x, blocks, bias, "none", [], "")
            return out

        sample = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).view(3, -1).sin()
        got, wanted = product(sample).float(), functional.linear(sample, weight, bias).float()
    except RuntimeError as error:
        log.debug("oneDNN does not pack a matrix of %s: %s", tuple(weight.shape), error)
        return None
    return product if float((got - wanted).norm()) <= limit * float(wanted.norm()) else None
