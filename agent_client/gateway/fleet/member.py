"""One runtime as the gateway knows it."""

from __future__ import annotations

import time

from ...access import Access
from ...aio import AsyncRadixClient
from ...errors import RadixloopError, Unavailable
from ...results import ModelInfo
from ...retry import RetryPolicy
from ..token_texts import TokenTexts

SERVING = "SERVING"
# A runtime that was started anew may serve another model at the same address.
FRESH_S = 10.0
# gRPC waits for up to two minutes before it tries a broken connection again: a runtime that is back would stand idle.
_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2000))


class Member:
    """A connection to one runtime.

    Attributes:
        status: what its health service said last, or why it could not be asked.
        up: whether calls are sent here while others are up.
        info: the model that it serves; None until it was asked.
    """

    def __init__(self, target: str, access: Access | None) -> None:
        self.target = target
        # Whoever calls has retries of its own; two layers of them would multiply.
        self.client = AsyncRadixClient(target, retry=RetryPolicy(max_attempts=1), access=access, options=_OPTIONS)
        self.texts = TokenTexts(self.client)
        self.status = "not asked yet"
        self.up = False
        self.info: ModelInfo | None = None
        self._asked_s = 0.0

    @property
    def incarnation(self) -> str:
        """New at every start of the runtime: what is numbered there begins again with it."""
        return "" if self.info is None else self.info.incarnation

    async def look(self) -> str:
        """Asks whether it serves, and now and then what; returns and keeps the status."""
        try:
            self.status = await self.client.health()
            if self.status == SERVING and (not self.up or time.monotonic() - self._asked_s > FRESH_S):
                self.info = await self.client.model_info()
                self._asked_s = time.monotonic()
        except RadixloopError as error:
            self.status = str(error)
        self.up = self.status == SERVING
        return self.status

    async def model(self) -> ModelInfo:
        """The model that it serves. Raises the runtime's error where that is not known and cannot be asked."""
        if self.info is None:
            await self.look()
        if self.info is None:
            raise Unavailable(f"the runtime at {self.target} does not answer: {self.status}")
        return self.info

    def failed(self, error: RadixloopError) -> None:
        """A call found it gone: it is left out until it is looked at again."""
        if isinstance(error, Unavailable):
            self.status, self.up = str(error), False
