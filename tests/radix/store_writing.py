"""Prompts that are computed and committed, for tests of what the store keeps of them."""

from __future__ import annotations

from radix import Namespace, PrefixStore, Sequence

NS = Namespace("weights")


def write(store: PrefixStore, tokens: list[int], namespace: Namespace = NS, public_tokens: int = 0) -> Sequence:
    """Open, compute and commit `tokens`; the sequence stays open."""
    seq = store.open(tokens, namespace, public_tokens=public_tokens)
    store.reserve(seq, len(tokens) - seq.length)
    store.commit(seq, tokens[seq.length :])
    return seq


def cache(store: PrefixStore, tokens: list[int], namespace: Namespace = NS) -> None:
    store.close(write(store, tokens, namespace))
