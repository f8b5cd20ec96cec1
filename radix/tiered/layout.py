"""What tiers a simulated machine has: their bytes, what a token takes there, and how fast they are."""

from __future__ import annotations

from dataclasses import dataclass

from radix.errors import InvalidArgument
from radix.model_shapes import ModelShape
from radix.plan import Plan, dtype_named
from radix.sizes import format_bytes, parse_bytes, parse_tokens

NAMES = ("device", "host", "disk")


@dataclass(frozen=True, slots=True)
class Layout:
    """Memories of one machine, and the KV of one model in them.

    Attributes:
        sizes: bytes by tier, the device's among them; the fastest first.
        bandwidth: bytes a second from each tier but the device's to the device.
        prefill_rate: tokens a second that a prompt is computed at.
    """

    shape: ModelShape
    dtype: str
    sizes: dict[str, int]
    bandwidth: dict[str, int]
    prefill_rate: int

    @property
    def bytes_per_token(self) -> int:
        return bytes_per_token(self.shape, self.dtype)

    def blocks(self, tier: str, block_size: int) -> int:
        """Return how many whole blocks a tier holds. Raises InvalidArgument where it holds none."""
        block_bytes = self.bytes_per_token * block_size
        blocks = self.sizes[tier] // block_bytes
        if blocks < 1:
            raise InvalidArgument(
                f"{tier} is {format_bytes(self.sizes[tier])}: one block of {block_size} tokens of "
                f"{self.shape.name} takes {format_bytes(block_bytes)} at {self.dtype}"
            )
        return blocks


def bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """Bytes that a token's KV takes at a precision, every layer keeping it."""
    return Plan(shape, dtype, 1 << 62, 1).bytes_per_token


def parse_tiers(text: str, shape: ModelShape) -> dict[str, int]:
    """Return bytes by tier of `device=SIZE,host=SIZE,disk=SIZE`.

    A size is in bytes (80GiB), or N@DTYPE: what N tokens of the model take at that precision.

    Raises:
        InvalidArgument: no device, nothing behind it, an unknown or repeated tier, or no size.
    """
    given = {name: _size(name, value, shape) for name, value in _pairs(text, NAMES).items()}
    if "device" not in given or len(given) < 2:
        raise InvalidArgument("tiers needs device=SIZE and host=SIZE or disk=SIZE behind it, or both")
    return {name: given[name] for name in NAMES if name in given}


def parse_bandwidth(text: str, default: dict[str, int]) -> dict[str, int]:
    """Return bytes a second of `host=RATE,disk=RATE`; what is not given stays as in `default`.

    Raises:
        InvalidArgument: an unknown or repeated tier, or no rate.
    """
    given = {}
    for name, value in _pairs(text, NAMES[1:]).items():
        given[name] = _named(name, value.removesuffix("/s"))
    return {**default, **given}


def _named(name: str, value: str) -> int:
    try:
        return parse_bytes(value)
    except InvalidArgument as bad:
        raise InvalidArgument(f"{name}: {bad}") from None


def _pairs(text: str, names: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in names:
            raise InvalidArgument(f"{part.strip()!r} is none of {', '.join(f'{known}=SIZE' for known in names)}")
        if name in pairs:
            raise InvalidArgument(f"{name} is given twice")
        pairs[name] = value
    return pairs


def _size(name: str, value: str, shape: ModelShape) -> int:
    tokens, at, dtype = value.partition("@")
    if not at:
        return _named(name, value)
    try:
        return parse_tokens(tokens) * bytes_per_token(shape, dtype_named(dtype))
    except InvalidArgument as bad:
        raise InvalidArgument(f"{name}: {bad}") from None
