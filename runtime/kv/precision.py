"""At which precision a model's keys and values are kept, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from radix.kv_bytes import HALVES, Half, head_bytes
from runtime.kv.packing import REVISION, Packing, packing

DENSE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {dtype: name for name, dtype in DENSE.items()}
# What a layer that cannot bear a precision is kept at. For fp8 that takes no byte more: int8 has finer steps.
RAISED = {"int4": "int8", "fp8_e4m3": "int8", "int8": "fp16"}


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer keeps for a token: `kv_heads` keys of `key_dim` and values of `value_dim` numbers."""

    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int

    def dim(self, half: Half) -> int:
        return self.key_dim if half == "keys" else self.value_dim


@dataclass(frozen=True)
class KVFormat:
    """A pool's precision: one name of `radix.kv_bytes.PRECISIONS` for keys, one for values.

    raised: the (layer, half) pairs that are kept at RAISED instead.
    """

    keys: str
    values: str
    raised: frozenset[tuple[int, Half]] = field(default_factory=frozenset)

    def raising(self, *places: tuple[int, Half]) -> KVFormat:
        """The format with these halves of layers raised too."""
        return replace(self, raised=self.raised | set(places))

    @classmethod
    def dense(cls, dtype: torch.dtype) -> KVFormat:
        return cls(_NAMES[dtype], _NAMES[dtype])

    @property
    def packs(self) -> bool:
        """Whether anything is kept below 16 bits."""
        return any(name not in DENSE for name in (self.keys, self.values))

    @property
    def name(self) -> str:
        """As reports show it: `int8`, `k:int8,v:fp16`, `int4+5` with five halves of layers raised."""
        base = self.keys if self.keys == self.values else f"k:{self.keys},v:{self.values}"
        return f"{base}+{len(self.raised)}" if self.raised else base

    @property
    def digest_text(self) -> str:
        """All that decides what stored bytes mean, for a fingerprint."""
        text = f"{self.keys} {self.values} {sorted(self.raised)}"
        return f"{text} {REVISION}" if self.packs else text

    def at(self, layer: int, half: Half) -> str:
        """The precision of one layer's keys or values."""
        name = self.keys if half == "keys" else self.values
        return RAISED[name] if (layer, half) in self.raised else name

    def packing(self, layer: int, half: Half) -> Packing | None:
        return packing(self.at(layer, half), keys=half == "keys")

    def bytes_per_token(self, shapes: Sequence[LayerShape]) -> int:
        """Bytes that a token takes in these layers, scales counted."""
        return sum(
            shape.kv_heads * head_bytes(self.at(shape.layer, half), half, shape.dim(half))
            for shape in shapes
            for half in HALVES
        )
