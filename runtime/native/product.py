"""Products with a weight matrix through product.c, which keeps the matrix in panels of columns."""

from __future__ import annotations

import ctypes

import torch

from runtime.native.compiler import NativeUnavailable
from runtime.native.library import load_library

# Outputs that AVX-512 takes at a time; narrower vectors were not seen to be faster than oneDNN.
_MIN_WIDTH = 48

_pointer, _long, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class NativeProduct:
    """`x [..., inputs]` to `x weight^T + bias [..., outputs]` in float32 on the CPU.

    weight: `[outputs, inputs]`, which is copied. A row's result does not depend, in any bit, on the rows beside it.
    Raises NativeUnavailable.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        library = load_library("product")
        self._multiply = library.product
        self._multiply.argtypes = (_pointer, _long, _pointer, _pointer, _pointer, _long, _int, _int, _int)
        self._multiply.restype = None
        self._outputs, self._inputs = weight.shape
        width = int(library.product_width())
        if width < _MIN_WIDTH:
            raise NativeUnavailable("this CPU has no AVX-512")
        panels = weight.new_zeros(-(-self._outputs // width) * width, self._inputs)
        panels[: self._outputs] = weight
        self._panels = panels.view(-1, width, self._inputs).transpose(1, 2).contiguous()
        self._bias = None if bias is None else bias.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != self._inputs or x.dtype != torch.float32:
            raise RuntimeError(f"{x.dtype} {tuple(x.shape)} does not fit a matrix of {self._inputs} inputs")
        rows = x.reshape(-1, self._inputs)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = x.new_empty(*x.shape[:-1], self._outputs)
        self._multiply(
            rows.data_ptr(),
            rows.stride(0),
            self._panels.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            len(rows),
            self._inputs,
            self._outputs,
            torch.get_num_threads(),
        )
        return out
