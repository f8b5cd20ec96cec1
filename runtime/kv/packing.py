"""How the numbers of one head of one token lie in bytes: the codes of each precision, and the scales behind them.

Every packing quantises a head of a token by itself, when it is written, from nothing but its own numbers: what is
stored does not depend on what else is computed or cached. Scales and offsets are float16, in the record's last bytes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from radix.kv_bytes import head_bytes

# Part of the fingerprint: to be raised when a record of the same name comes to stand for other numbers.
REVISION = 2
_LEAST_SCALE, _MOST_SCALE = 2.0**-24, 65504.0


class Packing(Protocol):
    """One precision below 16 bits.

    name: that of the setting. rotates: numbers are stored in a Hadamard basis, see runtime.kv.rotation. code: as
    runtime/native/records.h and the Triton kernel number them.
    """

    name: str
    rotates: bool
    code: int

    def record_bytes(self, dim: int) -> int: ...

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """Uint8 `[..., record_bytes]` of float32 `[..., dim]`."""
        ...

    def decode(self, records: torch.Tensor, dim: int) -> torch.Tensor:
        """Float32 `[..., dim]` of uint8 `[..., record_bytes]`."""
        ...


class Int8:
    """Bytes from -127 to 127, symmetric, times a scale."""

    name, code = "int8", 3

    def __init__(self, rotates: bool) -> None:
        self.rotates = rotates

    def record_bytes(self, dim: int) -> int:
        return head_bytes(self.name, "keys", dim)

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        scale = _scale(numbers.abs().amax(-1, keepdim=True) / 127)
        codes = (numbers / scale).round_().clamp_(-127, 127).to(torch.int8)
        return _join(codes.view(torch.uint8), scale)

    def decode(self, records: torch.Tensor, dim: int) -> torch.Tensor:
        return records[..., :dim].view(torch.int8).float().mul_(_read_half(records, 1))


class Float8:
    """E4M3 without infinities, scaled so that the largest number of a head is the largest of the format."""

    name, code = "fp8_e4m3", 4

    def __init__(self, rotates: bool) -> None:
        self.rotates = rotates

    def record_bytes(self, dim: int) -> int:
        return head_bytes(self.name, "keys", dim)

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        scale = _scale(numbers.abs().amax(-1, keepdim=True) / 448)
        codes = (numbers / scale).clamp_(-448, 448).to(torch.float8_e4m3fn)
        return _join(codes.view(torch.uint8), scale)

    def decode(self, records: torch.Tensor, dim: int) -> torch.Tensor:
        return records[..., :dim].view(torch.float8_e4m3fn).float().mul_(_read_half(records, 1))


class Int4Values:
    """Four bits, symmetric about zero without a code for it: (code - 7.5) times a scale.

    The first half of a head lies in the low nibbles, the second in the high ones.
    """

    name, rotates, code = "int4", True, 5

    def record_bytes(self, dim: int) -> int:
        return head_bytes(self.name, "values", dim)

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        scale = _scale(numbers.abs().amax(-1, keepdim=True) / 7.5)
        codes = (numbers / scale).floor_().clamp_(-8, 7).add_(8).to(torch.uint8)
        return _join(_nibbles(codes), scale)

    def decode(self, records: torch.Tensor, dim: int) -> torch.Tensor:
        codes = _from_nibbles(records[..., : (dim + 1) // 2], dim)
        return codes.float().sub_(7.5).mul_(_read_half(records, 1))


class Int4Keys:
    """Five bits between a head's least and largest number: four in nibbles, the fifth of every number behind them.

    A query weighs the errors of all of a key's numbers together before the exponential, and those of values are
    averaged over tokens: the same error costs about five times as much in keys (docs/capacity.md).
    """

    name, rotates, code = "int4", True, 6

    def record_bytes(self, dim: int) -> int:
        return head_bytes(self.name, "keys", dim)

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        low, high = numbers.aminmax(dim=-1, keepdim=True)
        scale, offset = _scale((high - low) / 31), low.clamp(-_MOST_SCALE, _MOST_SCALE).half().float()
        codes = ((numbers - offset) / scale).round_().clamp_(0, 31).to(torch.uint8)
        return _join(torch.cat([_nibbles(codes & 15), _bits(codes >> 4)], dim=-1), scale, offset)

    def decode(self, records: torch.Tensor, dim: int) -> torch.Tensor:
        half = (dim + 1) // 2
        low = _from_nibbles(records[..., :half], dim)
        places = torch.arange(8, dtype=torch.uint8, device=records.device)
        fifth = (records[..., half : half + (dim + 7) // 8, None] >> places & 1).flatten(-2)[..., :dim]
        return (low + (fifth << 4)).float().mul_(_read_half(records, 2)).add_(_read_half(records, 1))


def packing(name: str, *, keys: bool) -> Packing | None:
    """How a precision keeps keys or values; None for those that are dtypes of torch."""
    if name == "int8":
        return Int8(rotates=keys)
    if name == "fp8_e4m3":
        return Float8(rotates=keys)
    if name == "int4":
        return Int4Keys() if keys else Int4Values()
    return None


def _scale(wanted: torch.Tensor) -> torch.Tensor:
    """As float16 holds it, so that codes are chosen by the scale that will be read."""
    return wanted.clamp(_LEAST_SCALE, _MOST_SCALE).half().float()


def _join(codes: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    return torch.cat([_padded(codes, 2), *(scale.half().view(torch.uint8) for scale in scales)], dim=-1)


def _read_half(records: torch.Tensor, from_end: int) -> torch.Tensor:
    """The float16 number that is so many from the end of each record, as float32 `[..., 1]`."""
    at = records.shape[-1] - 2 * from_end
    return records[..., at : at + 2].view(torch.float16).float()


def _padded(codes: torch.Tensor, multiple: int) -> torch.Tensor:
    # Padding by nothing would copy.
    short = -codes.shape[-1] % multiple
    return functional.pad(codes, (0, short)) if short else codes


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    low, high = _padded(codes, 2).chunk(2, dim=-1)
    return low | high << 4


def _from_nibbles(packed: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat([packed & 15, packed >> 4], dim=-1)[..., :dim]


def _bits(bits: torch.Tensor) -> torch.Tensor:
    """Uint8 `[..., ceil(n / 8)]` of `[..., n]` zeros and ones: number i is bit `i % 8` of byte `i // 8`."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    padded = _padded(bits, 8)
    octets = padded.view(*padded.shape[:-1], -1, 8)
    return torch.sum(octets << places, dim=-1, dtype=torch.uint8)
