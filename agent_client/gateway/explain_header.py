"""A miss verdict on one line, for a response header."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import Started
from ..verdicts import Span
from ..words import count, counted, duration

ASKED = "x-radixloop-explain"
# Longer headers are cut or refused by servers in between.
MAX_CHARS = 1000


def explanation(started: Sequence[Started]) -> str:
    """ASCII. For each prompt: tokens cached, then each stretch that missed, why, and where it begins."""
    told = [_one(first) for first in started]
    lines = told if len(told) == 1 else [f"prompt {rank}: {text}" for rank, text in enumerate(told)]
    line = " | ".join(lines)
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 3]}..."


def _one(first: Started) -> str:
    found = f"{count(first.usage.cached_tokens)} of {counted(first.usage.prompt_tokens, 'prompt token')} cached"
    missed = [] if first.verdict is None else [_stretch(span) for span in first.verdict.missed()]
    return "; ".join([found, *missed])


def _stretch(span: Span) -> str:
    if span.cause == "last_token":
        return "the last token is always computed"
    gone = "" if span.gone_s is None else f" {duration(span.gone_s)} ago"
    return f"{count(span.tokens)} {span.cause.replace('_', ' ')}{gone} from token {count(span.start)}"
