"""The token streams that every target gets: recorded loops, or branches of one trunk, tokenised once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..aio import AsyncRadixClient
from ..errors import InvalidArgument
from ..prompts import Prompt
from ..replay.plan import PlannedSession
from ..traces import Call, Session

# Tokens put before every prompt, so that what earlier rounds left in a cache is of no use.
MARKER_TOKENS = 2


@dataclass(frozen=True)
class FanOut:
    """`branches` prompts of `trunk + tail` tokens, alike in the first `trunk` and in none after."""

    branches: int
    trunk: int
    tail: int


class Markers:
    """Pairs of token ids, none given twice; two in a row differ in the first."""

    def __init__(self, known: Sequence[int], start: int) -> None:
        """`known` are ids that the model has, `start` a number that tells this comparison from others."""
        self._known = known
        self._next = start

    def take(self) -> array[int]:
        number, self._next = self._next, self._next + 1
        size = len(self._known)
        return array("i", [self._known[number % size], self._known[number // size % size]])


async def tokenised(client: AsyncRadixClient, sessions: Sequence[PlannedSession]) -> list[PlannedSession]:
    """The sessions with token ids for prompts: what the runtime's template and tokenizer make of them.

    Calls that do not fit stay as they are, for they are not made.
    """

    async def ids(prompt: Prompt, fits: bool) -> Prompt:
        return (await client.tokenize(prompt, plain=True)).token_ids if fits else prompt

    out = []
    for planned in sessions:
        prompts = tuple([await ids(p, fits) for p, fits in zip(planned.prompts, planned.fits, strict=True)])
        branches = {turn: await tokenised(client, group) for turn, group in planned.branches.items()}
        out.append(replace(planned, prompts=prompts, branches=branches))
    return out


def marked(sessions: Sequence[PlannedSession], markers: Markers, each_call: bool) -> list[PlannedSession]:
    """Every prompt behind a marker: one for all of them, or one for each call so that no two share anything."""
    common = markers.take()

    def mark(prompt: Prompt) -> Prompt:
        return (markers.take() if each_call else common) + prompt if isinstance(prompt, array) else prompt

    def session(planned: PlannedSession) -> PlannedSession:
        branches = {turn: [session(branch) for branch in group] for turn, group in planned.branches.items()}
        return replace(planned, prompts=tuple(mark(prompt) for prompt in planned.prompts), branches=branches)

    return [session(planned) for planned in sessions]


def fan_out(shape: FanOut, sessions: Sequence[PlannedSession]) -> list[PlannedSession]:
    """One-call sessions over the tokens of `sessions`; a marker is to come before them and counts as trunk.

    Raises InvalidArgument when the trace has too few tokens.
    """
    text = array("i", [token for prompt in _longest_prompts(sessions) for token in prompt])
    length = shape.trunk - MARKER_TOKENS
    trunk, rest = text[:length], text[length:]
    tails: dict[int, array[int]] = {}
    at = 0
    while len(tails) < shape.branches and at + shape.tail <= len(rest):
        # Tails that begin alike would share more than the trunk.
        fresh = rest[at] not in tails
        if fresh:
            tails[rest[at]] = rest[at : at + shape.tail]
        at += shape.tail if fresh else 1
    if len(tails) < shape.branches:
        needed = shape.trunk + shape.branches * shape.tail
        raise InvalidArgument(
            f"the chosen sessions have {len(text):,} tokens, too few for {shape.branches} branches that begin "
            f"differently ({needed:,} tokens at least): choose more sessions"
        )
    return [
        PlannedSession(Session(f"branch {i}", (Call(""),)), (trunk + tail,), (True,), {})
        for i, tail in enumerate(tails.values(), 1)
    ]


def known_tokens(sessions: Sequence[PlannedSession]) -> list[int]:
    """Every id in the prompts, once, in order."""
    return sorted({token for prompt in token_prompts(sessions) for token in prompt})


def token_prompts(sessions: Sequence[PlannedSession]) -> Iterator[array[int]]:
    """The prompts of calls that are made, branches included."""
    for planned in sessions:
        yield from (prompt for prompt in planned.prompts if isinstance(prompt, array))
        for group in planned.branches.values():
            yield from token_prompts(group)


def _longest_prompts(sessions: Sequence[PlannedSession]) -> Iterator[array[int]]:
    for planned in sessions:
        yield max((p for p in planned.prompts if isinstance(p, array)), key=len, default=array("i"))
