"""The model that the runtime serves, and the names that requests may call it by."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..aio import AsyncRadixClient
from ..results import ModelInfo
from .failures import NOT_FOUND, ApiError

# A runtime that was started anew may serve another model at the same address.
FRESH_S = 10.0


class ServedModel:
    """Asks the runtime what it serves, and again after a while. `aliases` are further names that it goes by."""

    def __init__(self, client: AsyncRadixClient, aliases: Sequence[str]) -> None:
        self._client = client
        self._aliases = tuple(aliases)
        self._info: ModelInfo | None = None
        self._asked_s = 0.0
        self.since = int(time.time())

    async def info(self) -> ModelInfo:
        """Raises the runtime's error when it does not answer."""
        now = time.monotonic()
        if self._info is None or now - self._asked_s > FRESH_S:
            self._info, self._asked_s = await self._client.model_info(), now
        return self._info

    async def names(self) -> tuple[str, ...]:
        return ((await self.info()).model, *self._aliases)

    async def find(self, name: str) -> ModelInfo:
        """The model of that name. Raises ApiError 404 when another is served."""
        names = await self.names()
        if name not in names:
            shown = name if len(name) <= 80 else f"{name[:80]}…"
            message = f"model {shown!r} is not served here; {' and '.join(map(repr, names))} is"
            raise ApiError(NOT_FOUND, message, param="model")
        return await self.info()
