"""A verdict in words, for a person."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .prefixes import common_prefix
from .verdicts import Divergence, Explanation, Promotion, Span
from .words import count, counted, duration, seconds

_SHARED_CHARS = 40
_SIDE_CHARS = 40

CAUSE_WORDS = {
    "cached": "found in the cache",
    "last_token": "cached; a prompt's last token is computed all the same",
    "evicted": "evicted to make room for others",
    "lease_expired": "evicted to make room for others, after the lease that kept it had ended",
    "in_flight": "a running request computes it right now",
    "other_namespace": "cached under another salt or adapter",
    "diverged": "something else was stored from here on",
    "never_seen": "never seen, or longer ago than is remembered",
}


def explanation_lines(told: Explanation) -> Iterator[str]:
    """What was found, each stretch that was not and why, and where the prompt parted from what was stored."""
    yield _summary(told)
    if told.verdict.promotion is not None:
        yield _tiers(told.verdict.promotion)
    yield ""
    last = told.verdict.spans[-1].end - 1 if told.verdict.spans else 0
    width = len(count(last))
    for span in told.verdict.spans:
        place = f"{count(span.start):>{width}} – {count(span.end - 1):>{width}}"
        yield f"  {place}  {span.cause.replace('_', ' '):<15} {count(span.tokens):>{width}}  {_why(span, told)}"
    if told.divergence is not None:
        yield ""
        yield from _divergence(told.divergence)


def _summary(told: Explanation) -> str:
    missing = told.prompt_tokens - told.cached_tokens
    found = f"{count(told.cached_tokens)} cached, {count(missing)} to compute"
    line = f"{counted(told.prompt_tokens, 'prompt token')}: {found}"
    if told.estimated_s is None:
        return line
    pace = f"{(told.prefill_s_per_token or 0) * 1000:.3g} ms a token"
    return f"{line}, about {seconds(told.estimated_s)} at {pace}"


def _tiers(held: Promotion) -> str:
    places = [
        f"{count(tokens)} {place}"
        for tokens, place in ((held.host_tokens, "in host memory"), (held.disk_tokens, "on disk"))
        if tokens
    ]
    precision = f" at {held.kv_dtype}" if held.kv_dtype else ""
    line = f"{' and '.join(places)}{precision}: {'to be fetched' if held.fetched else 'cheaper to compute'}"
    estimates = (("fetching", held.fetch_s), ("computing", held.compute_s))
    told = [f"{doing} takes about {seconds(estimate)}" for doing, estimate in estimates if estimate is not None]
    return f"{line} ({', '.join(told)})" if told else line


def _why(span: Span, told: Explanation) -> str:
    if span.cause not in ("evicted", "lease_expired"):
        return CAUSE_WORDS[span.cause]
    when = "evicted, when is forgotten" if span.gone_s is None else f"evicted {duration(span.gone_s)} ago"
    if span.cause == "lease_expired":
        return f"{when}, after the lease that kept it had ended"
    return f"{when} to make room for others (policy {told.eviction})"


def _divergence(parted: Divergence) -> Iterator[str]:
    place = f"token {count(parted.position)}"
    if parted.message_index is not None:
        place += f", in message {parted.message_index} ({parted.role})"
        place += ", outside its content" if parted.offset is None else f", character {count(parted.offset)}"
    if parted.template is not None:
        yield f"The chat template {parted.template.detail}."
    yield f"Parted from what is stored at {place}:"
    shared = _shown(parted.shared)
    shared = f"…{shared[-_SHARED_CHARS:]}" if len(shared) > _SHARED_CHARS else shared
    sides = [("sent", parted.prompt), *(("stored", side) for side in parted.stored)]
    for name, side in sides:
        # A side that is longer than what was decoded of it goes on.
        yield f"  {name:<7} {shared}{_shown(side)[:_SIDE_CHARS]}…"
    # Tokens that differ may begin alike.
    same = min((common_prefix(parted.prompt, side) for side in parted.stored), default=0)
    yield " " * (len("  stored  ") + len(shared) + len(_shown(parted.prompt[:same]))) + "^"


def _shown(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
