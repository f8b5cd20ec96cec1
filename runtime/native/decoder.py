"""The lean forward's steps between its products, through decoder.c: each reads and writes its numbers once."""

from __future__ import annotations

import ctypes

import torch

from runtime.models.decoder_ops import Activation, HeadNorm, RmsNorm, TorchOps
from runtime.native.library import load_library

_pointer, _long, _int, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class NativeOps:
    """float32 on the CPU. Activations other than SiLU stay with torch. Raises NativeUnavailable."""

    def __init__(self) -> None:
        library = load_library("decoder")
        self._add_norm = library.add_norm
        self._add_norm.argtypes = (_pointer, _pointer, _pointer, _float, _pointer, _long, _int, _int)
        self._rotate = library.rotate
        self._rotate.argtypes = (_pointer, _long, _pointer, _float, _pointer, _pointer, _long, _int, _int, _int)
        self._gate = library.gate
        self._gate.argtypes = (_pointer, _pointer, _long, _int, _int)
        for function in (self._add_norm, self._rotate, self._gate):
            function.restype = None
        self._torch = TorchOps()

    def norm(self, hidden: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        return self._norm(hidden, None, norm)

    def add_norm(self, hidden: torch.Tensor, delta: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        """See DecoderOps."""
        return self._norm(hidden, delta.contiguous().data_ptr(), norm)

    def _norm(self, hidden: torch.Tensor, delta: int | None, norm: RmsNorm) -> torch.Tensor:
        rows, dim = hidden.shape
        out = torch.empty_like(hidden)
        self._add_norm(
            hidden.data_ptr(),
            delta,
            norm.weight.data_ptr(),
            norm.eps,
            out.data_ptr(),
            rows,
            dim,
            torch.get_num_threads(),
        )
        return out

    def angles(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See DecoderOps."""
        return cos.contiguous(), sin.contiguous()

    def rotate(
        self, joint: torch.Tensor, heads: int, norm: HeadNorm | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """See DecoderOps; joint is changed."""
        rows, _, dim = joint.shape
        if cos.shape != (rows, dim) or joint.stride()[1:] != (dim, 1):
            raise RuntimeError(f"angles {tuple(cos.shape)} do not turn heads {tuple(joint.shape)}")
        self._rotate(
            joint.data_ptr(),
            joint.stride(0),
            None if norm is None else norm.weight.data_ptr(),
            0.0 if norm is None else norm.eps,
            cos.data_ptr(),
            sin.data_ptr(),
            rows,
            heads,
            dim,
            torch.get_num_threads(),
        )
        return joint[:, :heads]

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See DecoderOps."""
        if not activation.silu or not gate_up.is_contiguous():
            return self._torch.gate(gate_up, activation)
        rows, both = gate_up.shape
        out = gate_up.new_empty(rows, both // 2)
        self._gate(gate_up.data_ptr(), out.data_ptr(), rows, both // 2, torch.get_num_threads())
        return out
