"""Up to where a prompt is to be kept, and for how long."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import RadixloopError
from ...prefixes import common_prefix
from ...prompts import Prompt
from ..fleet import Member

log = logging.getLogger(__name__)

# By Anthropic's names.
TTL_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True)
class Breakpoint:
    """The prompt up to here is to be kept. `up_to`: the prompt cut here; None where that is all of it."""

    ttl: str
    up_to: Prompt | None


@dataclass(frozen=True)
class Mark:
    """The first `tokens` of a prompt are to be kept for that long."""

    tokens: int
    ttl: str


async def marks(member: Member, salt: str | None, found: Sequence[Breakpoint], ids: array[int]) -> list[Mark]:
    """Where breakpoints lie in the token ids of a prompt in the namespace of `salt`; at 0 where nobody can say."""

    async def place(point: Breakpoint) -> Mark:
        if point.up_to is None:
            return Mark(len(ids), point.ttl)
        try:
            cut = await member.client.tokenize(point.up_to, salt=salt)
        except RadixloopError as error:
            # A template may take the whole prompt and not a part of it. That is no reason to fail the request.
            log.warning("a cache_control mark could not be placed: %s", error)
            return Mark(0, point.ttl)
        return Mark(common_prefix(memoryview(cut.token_ids), memoryview(ids)), point.ttl)

    return list(await asyncio.gather(*map(place, found)))
