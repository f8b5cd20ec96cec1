"""What single tokens read as: log-probabilities are told by text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from ..aio import AsyncRadixClient
from ..results import TokenLogprob

MAX_KNOWN = 200_000


class TokenTexts:
    """Asks the runtime once for each token id and remembers the answer, as long as the same model is served."""

    def __init__(self, client: AsyncRadixClient) -> None:
        self._client = client
        self._fingerprint = ""
        self._known: dict[int, str] = {}

    async def of(self, steps: Iterable[TokenLogprob], fingerprint: str) -> Mapping[int, str]:
        """Texts of the tokens in `steps`, sampled and top, for the model of this fingerprint."""
        if fingerprint != self._fingerprint or len(self._known) > MAX_KNOWN:
            self._fingerprint, self._known = fingerprint, {}
        known = self._known
        wanted = {token for step in steps for token in (step.token_id, *(other for other, _ in step.top))}
        missing = sorted(wanted - known.keys())
        texts = await asyncio.gather(*(self._client.detokenize([i], keep_special_tokens=True) for i in missing))
        known.update(zip(missing, texts, strict=True))
        return known
