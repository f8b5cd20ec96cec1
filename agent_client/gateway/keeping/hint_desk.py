"""Carries `kv_hints` out, once the request that brought them has ended well."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ... import calls
from ...errors import RadixloopError
from ...generate_options import namespace
from ..fleet import Member
from .hint_actions import Action, Fetch, Payload, Result, Retain, SetPriority
from .lease_book import DEFAULT_PRIORITY, LeaseBook

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

MAX_REMEMBERED = 4096
MAX_FETCHES = 64
DEFAULT_TTL_S = 300.0


@dataclass(frozen=True)
class Ended:
    """A request that ended well: where, whose, the highest priority that it may name, and its token ids."""

    member: Member
    salt: str | None
    loop: str
    max_priority: int
    prompt: array[int]
    output: Sequence[int]

    def whole(self) -> array[int]:
        """Prompt and output."""
        return self.prompt + array("i", self.output)

    def highest(self) -> int:
        """The highest priority of a lease: everybody may name what those have who name none."""
        return max(self.max_priority, DEFAULT_PRIORITY)


@dataclass(frozen=True)
class _Claim:
    terms: SetPriority
    member: Member
    incarnation: str
    lease_id: int | None

    def held(self) -> int | None:
        """The lease, unless the runtime was started anew: the number is somebody else's then."""
        return self.lease_id if self.incarnation == self.member.incarnation else None


class HintDesk:
    """Remembers the claims and the messages of late, so that what is sent twice is done once.

    `told` is called with each result.
    """

    def __init__(self, book: LeaseBook, told: Callable[[Result], None]) -> None:
        self._book = book
        self._told = told
        self._claims: OrderedDict[tuple[str | None, str], _Claim] = OrderedDict()
        self._done: OrderedDict[Hashable, None] = OrderedDict()
        self._fetching: set[asyncio.Task[None]] = set()

    async def carry_out(
        self, actions: Sequence[tuple[Action, Payload] | Result], message_id: str | None, ended: Ended
    ) -> list[Result]:
        """What became of each action, in their order."""
        results = []
        seen = set()
        for item in actions:
            if isinstance(item, Result):
                result = item
            else:
                action, payload = item
                name = (ended.salt, message_id, action.action_id)
                if action.action_id in seen or (message_id is not None and name in self._done):
                    result = _result(action, "duplicate", "this action was carried out before")
                else:
                    result = await self._one(action, payload, ended)
                seen.add(action.action_id)
                if message_id is not None and result.status in ("applied", "deferred"):
                    _remember(self._done, name, None)
            self._told(result)
            results.append(result)
        return results

    async def _one(self, action: Action, payload: Payload, ended: Ended) -> Result:
        if isinstance(payload, SetPriority):
            return await self._set_priority(action, payload, ended)
        if isinstance(payload, Retain):
            return await self._retain(action, payload, ended)
        return self._fetch(action, payload, ended)

    async def _set_priority(self, action: Action, terms: SetPriority, ended: Ended) -> Result:
        if (terms.target, terms.location) != ("request_cached", "local_g1"):
            return _result(action, "unsupported", "target request_cached at location local_g1 is served")
        key = (ended.salt, terms.claim_id)
        claim = self._claims.get(key)
        if claim is not None and terms.revision <= claim.terms.revision:
            if terms == claim.terms:
                return _result(action, "duplicate", f"revision {terms.revision} of this claim holds already")
            return _result(action, "rejected", f"this claim is at revision {claim.terms.revision}; send a higher one")
        lease_id = None
        if terms.value is not None and terms.value > 0:
            leased = await self._book.take(
                ended.member,
                ended.salt,
                ended.whole(),
                ttl_s=terms.ttl_seconds or DEFAULT_TTL_S,
                priority=min(terms.value, ended.highest()),
                label=_label(f"claim {terms.claim_id}"),
            )
            if leased.lease_id is None:
                return _result(action, "rejected", leased.why)
            lease_id = leased.lease_id
        held = None if claim is None else claim.held()
        if claim is not None and held is not None:
            await self._book.release(claim.member, held)
        _remember(self._claims, key, _Claim(terms, ended.member, ended.member.incarnation, lease_id))
        return _result(action, "applied")

    async def _retain(self, action: Action, terms: Retain, ended: Ended) -> Result:
        refusals = []
        for directive in terms.directives:
            # Later KV is of no use without what is before it: a range is kept with all that leads to it.
            ids = ended.whole() if directive.covers_output else ended.prompt[: directive.end]
            if directive.start >= len(ids):
                refusals.append(f"start {directive.start} is beyond the {len(ids)} tokens that there are")
                continue
            if directive.priority > ended.highest():
                refusals.append(f"priority {directive.priority} is above {ended.highest()}, the highest with this key")
                continue
            ttl_s = directive.duration or DEFAULT_TTL_S
            leased = await self._book.keep(
                ended.member,
                ended.salt,
                ended.loop,
                ids,
                ttl_s=ttl_s,
                priority=directive.priority,
                label=_label(f"kv.retain {action.action_id}"),
            )
            if leased.outcome == "refused":
                refusals.append(leased.why)
        if not refusals:
            return _result(action, "applied")
        told = f"{len(refusals)} of {len(terms.directives)} directives were refused: {refusals[0]}"
        return _result(action, "rejected" if len(refusals) == len(terms.directives) else "applied", told)

    def _fetch(self, action: Action, terms: Fetch, ended: Ended) -> Result:
        if terms.token_ids is None:
            return _result(action, "applied", "the request brought its own prompt in")
        if len(self._fetching) >= MAX_FETCHES:
            return _result(action, "rejected", "too much is being fetched already")
        try:
            ask = calls.warm(terms.token_ids, namespace(ended.salt, None))
        except RadixloopError as error:
            return _result(action, "rejected", error.message)

        async def warm() -> None:
            try:
                await ended.member.client._unary(ask)
            except RadixloopError as error:
                log.warning("kv.fetch at %s failed: %s", ended.member.target, error)

        task = asyncio.create_task(warm())
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)
        return _result(action, "deferred", "it is computed while the runtime has nothing better to do")


def _result(action: Action, status: str, detail: str = "") -> Result:
    return Result(action.action_id, action.action_type, status, detail)  # type: ignore[arg-type]


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MAX_REMEMBERED:
        table.popitem(last=False)


def _label(text: str) -> str:
    """What the runtime takes as a lease's label."""
    return "".join(char if char.isprintable() else "?" for char in text)[:128]
