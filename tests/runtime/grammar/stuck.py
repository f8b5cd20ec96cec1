"""A grammar whose masks take a while."""

from __future__ import annotations

import time

from runtime.grammar.interface import Words


class StuckMatcher:
    """Allows everything, so many seconds of the processor's time later."""

    complete = ended = False

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def accept(self, token_id: int) -> bool:
        return True

    def rollback(self, tokens: int) -> None:
        pass

    def fill(self, words: Words) -> None:
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass
        words.fill(-1)


class StuckGrammar:
    size_bytes = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def matcher(self) -> StuckMatcher:
        return StuckMatcher(self._seconds)
