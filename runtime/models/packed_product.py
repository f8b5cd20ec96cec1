"""Products with a weight matrix on CPU, by our own kernel in C or through oneDNN, each with a layout of its own.

The packed copy replaces the matrix: the same numbers in another order, in fewer bytes where they fit, and results equal
to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.nn import functional

from runtime.native.compiler import NativeUnavailable
from runtime.native.product import NativeProduct

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
    """The same from a packed copy; None where no way to pack it serves or what serves computes something else.

    Our own kernel packs float32 on CPUs with AVX-512, the only ones on which it was seen to be faster; oneDNN the rest.
    """
    limit = _TOLERANCE.get(weight.dtype)
    if weight.device.type != "cpu" or limit is None:
        return None
    sample = torch.linspace(-1, 1, 3 * weight.shape[1], dtype=weight.dtype).view(3, -1).sin()
    wanted = functional.linear(sample, weight, bias).float()
    for pack in (_native, _onednn):
        try:
            product = pack(weight, bias)
            got = product(sample).float()
        except (NativeUnavailable, RuntimeError) as error:
            log.debug("%s does not take a matrix of %s: %s", pack.__name__, tuple(weight.shape), error)
            continue
        if float((got - wanted).norm()) <= limit * float(wanted.norm()):
            return product
    return None


def _native(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    if weight.dtype != torch.float32:
        raise NativeUnavailable(f"it takes float32, not {weight.dtype}")
    return NativeProduct(weight, bias)


def _onednn(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    if not torch._C._has_mkldnn:
        raise RuntimeError("torch was built without oneDNN")
    multiply = torch.ops.mkldnn._linear_pointwise
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)

    def product(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = multiply(x, blocks, bias, "none", [], "")
        return out

    return product
