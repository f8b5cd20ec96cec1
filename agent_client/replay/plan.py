"""Which sessions and calls of a trace are replayed."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..messages import ChatMessage
from ..prompts import Chat, Prompt
from ..traces import Call, Session, Trace


@dataclass(frozen=True)
class PlannedSession:
    """A session, what each of its calls sends, which of them fit the context, and the branches, by turn (from 1)."""

    session: Session
    prompts: tuple[Prompt, ...]
    fits: tuple[bool, ...]
    branches: dict[int, list[PlannedSession]]

    @property
    def calls(self) -> int:
        """Calls to make in it and its branches. A branch off a call that is not made is not taken."""
        own = sum(self.fits)
        return own + sum(b.calls for turn, group in self.branches.items() if self.fits[turn - 1] for b in group)

    @property
    def recorded_calls(self) -> int:
        return len(self.fits) + sum(b.recorded_calls for group in self.branches.values() for b in group)


def choose_sessions(trace: Trace, count: int | None, seed: int | None) -> list[Session]:
    """The first `count` sessions without a parent, or `count` at random by `seed` (all of them, shuffled, for None)."""
    roots = [session for session in trace.sessions if session.parent is None]
    if seed is not None:
        random.Random(seed).shuffle(roots)
    return roots[:count]


async def plan(
    roots: Sequence[Session],
    trace: Trace,
    max_prompt: int | None,
    count_tokens: Callable[[Prompt], Awaitable[int]],
) -> list[PlannedSession]:
    """Marks the calls whose prompt is at most `max_prompt` tokens (None: all of them)."""
    by_parent: dict[str, list[Session]] = {}
    for session in trace.sessions:
        if session.parent is not None:
            by_parent.setdefault(session.parent.session, []).append(session)

    async def planned(session: Session) -> PlannedSession:
        branches: dict[int, list[PlannedSession]] = {}
        for branch in by_parent.get(session.id, ()):
            if branch.parent is not None:
                branches.setdefault(branch.parent.turn, []).append(await planned(branch))
        prompts = tuple(prompt_of(call, session) for call in session.calls)
        return PlannedSession(session, prompts, await _fitting(session, prompts, max_prompt, count_tokens), branches)

    return [await planned(session) for session in roots]


async def _fitting(
    session: Session,
    prompts: Sequence[Prompt],
    max_prompt: int | None,
    count_tokens: Callable[[Prompt], Awaitable[int]],
) -> tuple[bool, ...]:
    calls = session.calls
    if max_prompt is None or not calls:
        return (True,) * len(calls)
    grows = all(new_messages(before, after) is not None for before, after in pairwise(calls))
    if not grows:
        return tuple([await count_tokens(prompt) <= max_prompt for prompt in prompts])
    # In a history that only grows, everything fits up to some call: find it by halving.
    low, high = 0, len(calls)
    while low < high:
        middle = (low + high) // 2 if (low, high) != (0, len(calls)) else len(calls) - 1
        if await count_tokens(prompts[middle]) <= max_prompt:
            low = middle + 1
        else:
            high = middle
    return (True,) * low + (False,) * (len(calls) - low)


def prompt_of(call: Call, session: Session) -> Prompt:
    """The call's recorded prompt as the client sends it."""
    return call.prompt if isinstance(call.prompt, str) else Chat(call.prompt, session.tools_of(call))


def new_messages(before: Call, after: Call) -> tuple[ChatMessage, ...] | None:
    """What `after` appends to `before`'s prompt and recorded reply; None when it does not extend them."""
    if isinstance(before.prompt, str) or isinstance(after.prompt, str) or before.reply is None:
        return None
    known = (*before.prompt, before.reply)
    return after.prompt[len(known) :] if after.prompt[: len(known)] == known else None
