"""Where prompts parted from what was stored: the misses whose two sides can be shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..replay.records import CallRecord

SHARED_TOKENS = 16
SIDE_TOKENS = 24
BRANCHES = 2


@dataclass
class Parting:
    """One place where a prompt went another way than what was stored, and how often that happened.

    `position` is the first token that differs, of the first such call, which `session` and `turn` name. `tokens` are
    all that these calls missed for it. The texts stand in place of the ids once somebody decoded them.
    """

    session: str
    turn: int
    position: int
    shared_ids: tuple[int, ...]
    sent_ids: tuple[int, ...]
    stored_ids: tuple[tuple[int, ...], ...]
    calls: int = 0
    tokens: int = 0
    shared: str = ""
    sent: str = ""
    stored: tuple[str, ...] = ()


def partings(records: Iterable[CallRecord], most: int) -> list[Parting]:
    """Those that cost most tokens first, at most `most`; the same texts on both sides count as one."""
    found: dict[tuple[object, ...], Parting] = {}
    for record in records:
        if not record.finished or record.verdict is None:
            continue
        for span in record.verdict.missed():
            if span.cause != "diverged" or not span.beside:
                continue
            shared = tuple(record.prompt_ids[max(0, span.start - SHARED_TOKENS) : span.start])
            sent = tuple(record.prompt_ids[span.start : span.start + SIDE_TOKENS])
            stored = tuple(tuple(branch[:SIDE_TOKENS]) for branch in span.beside[:BRANCHES])
            new = Parting(record.session, record.turn, span.start, shared, sent, stored)
            parting = found.setdefault((shared, sent, stored), new)
            parting.calls += 1
            parting.tokens += span.tokens
    return sorted(found.values(), key=lambda parting: -parting.tokens)[:most]
