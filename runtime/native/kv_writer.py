"""Writes keys and values to a pool on the CPU through pack.c."""

from __future__ import annotations

import ctypes

import torch

from runtime.kv.kv_pool import KVPool
from runtime.kv.packed_view import PackedView
from runtime.native.compiler import NativeUnavailable
from runtime.native.library import load_library
from runtime.native.records import kept

# Numbers of a head that pack.c has room for.
MOST_DIM = 1024

_pointer, _long, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class _Half(ctypes.Structure):
    """`struct half` of pack.c."""

    _fields_ = (("pool", _pointer), ("kind", _int), ("bytes", _int), ("dim", _int), ("turned", _int))


class _Layer(ctypes.Structure):
    """`struct layer` of pack.c."""

    _fields_ = (("keys", _Half), ("values", _Half), ("heads", _int))


class NativeWriter:
    """See runtime.kv.writing.KVWriter. Computes in float32. Raises NativeUnavailable."""

    def __init__(self, pool: KVPool) -> None:
        library = load_library("pack")
        self._write = library.write_kv
        self._write.argtypes = (_pointer, _pointer, _long, _pointer, _long, _pointer, _long, _int)
        self._turn = library.turn_heads
        self._turn.argtypes = (_pointer, _long, _pointer, _long, _int, _int, _int)
        for function in (self._write, self._turn):
            function.restype = None
        # The structs point into the pool's memory.
        self._pool = pool
        self._layers = {}
        for index, kv in pool.layers.items():
            halves = (
                _half(tensor, half, turned)
                for tensor, half, turned in zip(
                    kv.tensors, (kv.keys, kv.values), (kv.rotate_keys, kv.rotate_values), strict=True
                )
            )
            self._layers[index] = _Layer(*halves, kv.kv_heads)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """See KVWriter."""
        key, value = _dense_heads(key), _dense_heads(value)
        self._write(
            ctypes.addressof(self._layers[layer]),
            slots.data_ptr(),
            len(slots),
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
            torch.get_num_threads(),
        )

    def turn(self, heads: torch.Tensor) -> torch.Tensor:
        """See KVWriter; heads `[T, heads, dim]`."""
        wide = _dense_heads(heads)
        out = wide.new_empty(wide.shape)
        count, each, dim = wide.shape
        self._turn(wide.data_ptr(), wide.stride(0), out.data_ptr(), count, each, dim, torch.get_num_threads())
        return out.to(heads.dtype)


def _half(tensor: torch.Tensor, half: torch.Tensor | PackedView, turned: bool) -> _Half:
    dim = half.shape[-1]
    if dim > MOST_DIM:
        raise NativeUnavailable(f"a head has {dim} numbers, pack.c has room for {MOST_DIM}")
    return _Half(tensor.data_ptr(), *kept(half), dim, turned)


def _dense_heads(heads: torch.Tensor) -> torch.Tensor:
    """Float32 `[T, heads, dim]` whose heads lie one behind the other in each token."""
    wide = heads.float()
    return wide if wide.stride()[1:] == (wide.shape[2], 1) else wide.contiguous()
