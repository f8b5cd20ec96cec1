"""Weight matrices in panels of columns, each in the fewest bytes that keep every number to the last bit (weights.c)."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from runtime.native.library import load_library

# Whether anything but plain floats is tried; for measuring what the formats are worth.
SWITCH = "RADIXLOOP_COMPACT_WEIGHTS"

_pointer, _long, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Format(IntEnum):
    """How the numbers of a panel are kept; the groups are of 32 inputs of one output."""

    SIGNED_NIBBLES = 0
    NIBBLES = 1
    OCTETS = 2
    BRAIN = 3
    HALF = 4
    FLOATS = 5

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES = {
    Format.SIGNED_NIBBLES: "4-bit groups",
    Format.NIBBLES: "4-bit groups with offsets",
    Format.OCTETS: "8-bit groups",
    Format.BRAIN: "bfloat16",
    Format.HALF: "float16",
    Format.FLOATS: "float32",
}


@dataclass(frozen=True)
class Panels:
    """A matrix `[outputs, inputs]` in panels of `width` outputs.

    data: uint8, all panels one behind the other. offsets: int64, where each begins. formats: uint8, of each.
    """

    outputs: int
    inputs: int
    width: int
    data: torch.Tensor
    offsets: torch.Tensor
    formats: torch.Tensor

    @property
    def numbers(self) -> dict[Format, int]:
        """How many of the matrix's numbers are kept in each format."""
        rows = np.minimum(self.width, self.outputs - self.width * np.arange(len(self.formats)))
        counted = np.bincount(self.formats.numpy(), weights=rows, minlength=len(Format))
        return {kind: int(counted[kind]) * self.inputs for kind in Format if counted[kind]}


def panel_width() -> int:
    """Outputs of a panel on this CPU. Raises NativeUnavailable."""
    return int(load_library("weights").weights_width())


def pack_weights(weight: torch.Tensor) -> Panels:
    """Pack a float32 matrix `[outputs, inputs]` on the CPU, which is copied. Raises NativeUnavailable."""
    library = load_library("weights")
    library.weights_panel_bytes.restype = _long
    library.find_formats.argtypes = (_pointer, _long, _int, _int, _pointer, _int)
    library.write_panels.argtypes = (_pointer, _long, _int, _int, _pointer, _pointer, _pointer, _int)
    library.find_formats.restype = library.write_panels.restype = None
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    outputs, inputs = weight.shape
    width, threads = panel_width(), torch.get_num_threads()
    formats = torch.full((-(-outputs // width),), Format.FLOATS, dtype=torch.uint8)
    matrix = (weight.data_ptr(), weight.stride(0), outputs, inputs, formats.data_ptr())
    if os.environ.get(SWITCH, "on") != "off":
        library.find_formats(*matrix, threads)
    sizes = torch.tensor([library.weights_panel_bytes(int(kind), inputs) for kind in Format])[formats.long()]
    offsets = sizes.cumsum(0) - sizes
    data = torch.empty(int(sizes.sum()), dtype=torch.uint8)
    library.write_panels(*matrix, offsets.data_ptr(), data.data_ptr(), threads)
    return Panels(outputs, inputs, width, data, offsets, formats)
