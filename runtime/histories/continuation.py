"""Tokenising text that stands behind other text."""

from __future__ import annotations

from typing import Any

from runtime.sampling.detokenizer import special_token_ids


def continuation_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of text that stands in the middle of a text."""
    alone = _ids(tokenizer, text)
    if alone and alone[0] in special_token_ids(tokenizer):
        return alone
    # A sentencepiece tokenizer puts a space in front of a text. Behind another piece it does not.
    for piece in ("\n", "a"):
        before = _ids(tokenizer, piece)
        both = _ids(tokenizer, piece + text)
        if both[: len(before)] == before:
            return both[len(before) :]
    return alone


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids
