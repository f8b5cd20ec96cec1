"""A miss verdict on one line, for a response header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..results import Started
from ..verdicts import Divergence, Span
from ..words import count, counted, duration

ASKED = "x-radixloop-explain"
# Longer headers are cut or refused by servers in between.
MAX_CHARS = 1000


def asked(headers: Mapping[str, str]) -> bool:
    """Whether a request wants its verdict."""
    return headers.get(ASKED) == "1"


def explanation(started: Sequence[Started]) -> str:
    """ASCII. For each prompt: tokens cached, then each stretch that missed, why, and where it begins."""
    told = [_one(first) for first in started]
    lines = told if len(told) == 1 else [f"prompt {rank}: {text}" for rank, text in enumerate(told)]
    # What is quoted of a template or a role may be any text, and a header takes none but this.
    line = "".join(char if " " <= char <= "~" else "?" for char in " | ".join(lines))
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 3]}..."


def _one(first: Started) -> str:
    found = f"{count(first.usage.cached_tokens)} of {counted(first.usage.prompt_tokens, 'prompt token')} cached"
    parted = first.divergence
    missed = [] if first.verdict is None else [_stretch(span, parted) for span in first.verdict.missed()]
    template = None if parted is None else parted.template
    return "; ".join([found, *missed, *([] if template is None else [f"the chat template {template.detail}"])])


def _stretch(span: Span, parted: Divergence | None) -> str:
    if span.cause == "last_token":
        return "the last token is always computed"
    gone = "" if span.gone_s is None else f" {duration(span.gone_s)} ago"
    told = f"{count(span.tokens)} {span.cause.replace('_', ' ')}{gone} from token {count(span.start)}"
    if parted is None or parted.position != span.start or parted.message_index is None:
        return told
    return f"{told}, in message {parted.message_index}"
