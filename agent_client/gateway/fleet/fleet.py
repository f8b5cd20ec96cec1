"""All runtimes: looked after in the background, and put in order for each call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from ...access import Access
from ...errors import RadixloopError
from ...results import ModelInfo
from ..failures import NOT_FOUND, ApiError
from .member import Member
from .places import by_rendezvous

log = logging.getLogger(__name__)

LOOK_S = 2.0


class Fleet:
    """The runtimes at `targets` (HOST:PORT). `aliases` are further names for whatever model they serve."""

    members: Sequence[Member]

    def __init__(self, targets: Sequence[str], aliases: Sequence[str] = (), access: Access | None = None) -> None:
        self.targets = tuple(dict.fromkeys(targets))
        self._aliases = tuple(aliases)
        self._access = access
        self.since = int(time.time())

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connections to all, and a look at each every few seconds."""
        async with AsyncExitStack() as open_clients:
            self.members = [Member(target, self._access) for target in self.targets]
            for member in self.members:
                await open_clients.enter_async_context(member.client)
            watching = [asyncio.create_task(_watch(member)) for member in self.members]
            try:
                yield
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)

    async def look(self) -> dict[str, str]:
        """What each runtime's health service says now, by address."""
        told = await asyncio.gather(*(member.look() for member in self.members))
        return dict(zip(self.targets, told, strict=True))

    async def models(self) -> list[tuple[str, ModelInfo]]:
        """Every name that a model can be asked for by. Raises the runtimes' error where none of them answers."""
        known = [member.info for member in await self._known()]
        named = {info.model: info for info in known if info is not None}
        first = next(iter(named.values()))
        return [*named.items(), *((alias, first) for alias in self._aliases if alias not in named)]

    async def find(self, name: str) -> ModelInfo:
        """The model of that name. Raises ApiError 404 where no runtime serves it."""
        models = await self.models()
        for known, info in models:
            if known == name:
                return info
        shown = name if len(name) <= 80 else f"{name[:80]}…"
        served = " and ".join(repr(known) for known, _ in models)
        raise ApiError(NOT_FOUND, f"model {shown!r} is not served here; {served} is", param="model")

    async def order(self, model: str, key: str) -> Sequence[Member]:
        """The runtimes that serve `model`, those that are up first, and among them the one that is the place of `key`.

        Raises ApiError 404, or the runtimes' error where none of them answers.
        """
        wanted = (await self.find(model)).model
        serving = [member for member in await self._known() if member.info is not None and member.info.model == wanted]
        ordered = by_rendezvous(key, [(member.target, member) for member in serving])
        # One that seems down is tried all the same where nothing else is left: it may be back since it was looked at.
        return sorted(ordered, key=lambda member: not member.up)

    async def _known(self) -> list[Member]:
        known = [member for member in self.members if member.info is not None]
        if known:
            return known
        told = await asyncio.gather(*(member.model() for member in self.members), return_exceptions=True)
        known = [member for member in self.members if member.info is not None]
        if not known:
            raise next(error for error in told if isinstance(error, BaseException))
        return known


async def _watch(member: Member) -> None:
    while True:
        before = member.up
        try:
            await member.look()
        except RadixloopError as error:
            member.failed(error)
        if before != member.up:
            log.warning("the runtime at %s is %s: %s", member.target, "up" if member.up else "left out", member.status)
        await asyncio.sleep(LOOK_S)
