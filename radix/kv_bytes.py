"""How many bytes a token's keys or values of one head take at each precision, scales counted.

`int4` keeps a fifth bit of every key beside its four, and a scale and an offset; of values four bits and a scale.
`int8` and `fp8_e4m3` keep a scale beside a byte a number. Scales are two bytes, and each head begins at an even byte.
"""

from __future__ import annotations

from typing import Literal

from radix.errors import InvalidArgument

Half = Literal["keys", "values"]
HALVES: tuple[Half, Half] = ("keys", "values")

DENSE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
PRECISIONS = (*DENSE_BYTES, "fp8_e4m3", "int8", "int4")
_SCALE = 2


def head_bytes(precision: str, half: Half, dim: int) -> int:
    """Bytes of one head's keys or values of `dim` numbers. Raises InvalidArgument, which lists the precisions."""
    if dim == 0:
        return 0
    if precision in DENSE_BYTES:
        return dim * DENSE_BYTES[precision]
    if precision in ("int8", "fp8_e4m3"):
        return even(dim) + _SCALE
    if precision == "int4":
        codes = (dim + 1) // 2
        return even(codes) + _SCALE if half == "values" else even(codes + (dim + 7) // 8) + 2 * _SCALE
    raise InvalidArgument(f"{precision!r} is no precision: known are {', '.join(PRECISIONS)}")


def even(count: int) -> int:
    """The next even number, where a scale may begin."""
    return count + count % 2
