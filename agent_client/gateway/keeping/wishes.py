"""What one request wants kept: marks of `cache_control`, and actions of `kv_hints`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from ...errors import RadixloopError
from ...results import Generation, Usage
from ..fleet import Running
from .breakpoints import TTL_S, Breakpoint, Mark, marks
from .hint_actions import PROTOCOL, KvHints, Result, read_actions
from .hint_desk import Ended, HintDesk
from .lease_book import LeaseBook, Outcome

LEASES_HEADER = "x-radixloop-leases"


class Wishes:
    """Asked for with a request, fulfilled when it ended well; one that fails or is left keeps nothing.

    Attributes:
        hint_results: what became of the actions; None where the request brought none.
    """

    hint_results: dict[str, Any] | None = None

    def __init__(
        self,
        book: LeaseBook,
        desk: HintDesk,
        *,
        salt: str | None,
        loop: str,
        max_priority: int,
        breakpoints: Sequence[Breakpoint] = (),
        hints: KvHints | None = None,
    ) -> None:
        self._book = book
        self._desk = desk
        self._salt = salt
        self._loop = loop
        self._max_priority = max_priority
        self._breakpoints = breakpoints
        self._hints = hints
        self._actions = [] if hints is None else read_actions(hints)
        self._marks: list[Mark] = []
        self._outcomes: list[Outcome] = []

    @property
    def any(self) -> bool:
        """Whether there is anything to keep: the prompt's token ids are needed then."""
        return bool(self._breakpoints or self._actions)

    async def begun(self, running: Running) -> None:
        """Finds out where the marks are. The runtime computes the prompt meanwhile."""
        if self._breakpoints:
            self._marks = await marks(running.member, self._salt, self._breakpoints, _prompt_ids(running))

    async def ended(self, running: Running, generations: Sequence[Generation]) -> None:
        """Takes the leases and carries the actions out."""
        if not self.any:
            return
        ids, member = _prompt_ids(running), running.member
        for mark in _outermost(self._marks):
            leased = await self._book.keep(
                member, self._salt, self._loop, ids[: mark.tokens], ttl_s=TTL_S[mark.ttl], label="cache_control"
            )
            self._outcomes.append(leased.outcome)
        if self._hints is None:
            return
        if len(generations) == 1:
            output = generations[0].token_ids
            ended = Ended(member, self._salt, self._loop, self._max_priority, ids, output)
            results = await self._desk.carry_out(self._actions, self._hints.message_id, ended)
        else:
            results = [_several(item if isinstance(item, Result) else item[0]) for item in self._actions]
        told = {"protocol_version": PROTOCOL, "results": [result.body() for result in results]}
        message = {} if self._hints.message_id is None else {"message_id": self._hints.message_id}
        self.hint_results = {**message, **told}

    def headers(self) -> dict[str, str]:
        """For an answer that was not sent before it ended."""
        if not self._outcomes:
            return {}
        counts = [(name, self._outcomes.count(name)) for name in ("taken", "renewed", "refused")]
        return {LEASES_HEADER: ", ".join(f"{number} {name}" for name, number in counts if number)}

    def written(self, usage: Usage) -> dict[str, int]:
        """Tokens of the prompt that were computed and lie before a mark, by the time that they are kept for."""
        written = dict.fromkeys(TTL_S, 0)
        place = usage.cached_tokens
        # Before a mark of an hour everything is kept for an hour.
        for ttl in sorted(TTL_S, key=TTL_S.__getitem__, reverse=True):
            end = max((mark.tokens for mark in self._marks if mark.ttl == ttl), default=0)
            written[ttl] = max(0, end - place)
            place = max(place, end)
        return written


def _outermost(found: Sequence[Mark]) -> list[Mark]:
    """The marks that no later one covers for as long, the longest first."""
    kept: list[Mark] = []
    for mark in sorted(found, key=lambda mark: (mark.tokens, TTL_S[mark.ttl]), reverse=True):
        if mark.tokens and all(TTL_S[mark.ttl] > TTL_S[other.ttl] for other in kept):
            kept.append(mark)
    return kept


def _prompt_ids(running: Running) -> array[int]:
    ids = running.started[0].prompt_ids
    if ids is None:
        raise RadixloopError("the runtime did not tell the prompt's token ids", code="INTERNAL")
    return ids


def _several(action: Any) -> Result:
    return Result(action.action_id, action.action_type, "rejected", "a request of several prompts takes no actions")
