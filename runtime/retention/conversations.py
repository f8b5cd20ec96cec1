"""What stateless callers sent last, by the name that they give their conversation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from runtime.services.convert import Tokens

MAX_CONVERSATIONS = 4096
# 32 MiB of token ids.
MAX_TOKENS = 8 * 2**20


class Conversations:
    """The last token list of each conversation; the least recently used are forgotten beyond the bounds."""

    def __init__(self, max_conversations: int = MAX_CONVERSATIONS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_conversations = max_conversations
        self._max_tokens = max_tokens
        self._last: OrderedDict[Hashable, Tokens] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._last)

    def get(self, name: Hashable) -> Tokens | None:
        """int32 tokens of the last finished call, prompt and output; None where none is remembered."""
        return self._last.get(name)

    def forget(self, name: Hashable) -> None:
        """Forget what a conversation sent last, if anything is remembered."""
        tokens = self._last.pop(name, None)
        self._tokens -= 0 if tokens is None else len(tokens)

    def keep(self, name: Hashable, tokens: Tokens) -> None:
        """Remember `tokens` in place of what was there."""
        self.forget(name)
        self._last[name] = tokens
        self._tokens += len(tokens)
        while len(self._last) > self._max_conversations or (self._tokens > self._max_tokens and len(self._last) > 1):
            _, gone = self._last.popitem(last=False)
            self._tokens -= len(gone)
