"""What may share a cached prefix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Namespace:
    """A typed cache key: prefixes are shared within a namespace and never across two.

    The parts are separate fields, so that a tenant called "x" and an adapter called "x" cannot meet.

    Attributes:
        fingerprint: digest over the weights, the tokenizer, the template and the KV dtype.
        salt: the tenant.
        adapter: the adapter (LoRA) that computes the KV.
    """

    fingerprint: str = ""
    salt: str | None = None
    adapter: str | None = None
