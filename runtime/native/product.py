"""Products with a weight matrix through product.c, which keeps the matrix in panels of columns."""

from __future__ import annotations

import ctypes

import torch

from runtime.native.compiler import NativeUnavailable
from runtime.native.library import load_library
from runtime.native.weights import pack_weights, panel_width

# Outputs that AVX-512 takes at a time; narrower vectors were not seen to be faster than oneDNN.
_MIN_WIDTH = 48

_pointer, _long, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class NativeProduct:
    """`x [..., inputs]` to `x weight^T + bias [..., outputs]` in float32 on the CPU.

    weight: `[outputs, inputs]`, which is copied into the fewest bytes that keep every number. A row's result does not
    depend, in any bit, on the rows beside it, nor on how the weights are kept. Raises NativeUnavailable.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._multiply = load_library("product").product
        self._multiply.argtypes = (_pointer, _long, *[_pointer] * 5, _long, *[_int] * 3)
        self._multiply.restype = None
        if panel_width() < _MIN_WIDTH:
            raise NativeUnavailable("this CPU has no AVX-512")
        self.panels = pack_weights(weight)
        self._bias = None if bias is None else bias.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        panels = self.panels
        if x.shape[-1] != panels.inputs or x.dtype != torch.float32:
            raise RuntimeError(f"{x.dtype} {tuple(x.shape)} does not fit a matrix of {panels.inputs} inputs")
        rows = x.reshape(-1, panels.inputs)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = x.new_empty(*x.shape[:-1], panels.outputs)
        self._multiply(
            rows.data_ptr(),
            rows.stride(0),
            panels.data.data_ptr(),
            panels.offsets.data_ptr(),
            panels.formats.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            len(rows),
            panels.inputs,
            panels.outputs,
            torch.get_num_threads(),
        )
        return out
