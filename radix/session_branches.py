"""Which branches of its history a session has left, told from the calls that it makes."""

from __future__ import annotations

from dataclasses import dataclass

from radix.tokens import Ints, common_prefix


@dataclass(frozen=True, slots=True)
class LeftBranch:
    """A path of which what follows position `keep` will not be sent again."""

    path: Ints
    keep: int


class SessionBranches:
    """The threads of one session: its main loop, and one for each subagent that it runs.

    A call continues the thread whose last path it shares most of, if that is more than three quarters of that path:
    threads share a system prompt, which can be half of what a young one sent. What the thread had beyond the shared
    part was rewritten: left. A call that continues no thread begins one.
    """

    def __init__(self) -> None:
        self._threads: list[Ints] = []

    def call(self, path: Ints) -> LeftBranch | None:
        """Note a call; return the branch that it leaves, if it does."""
        shared = [common_prefix(last, path) for last in self._threads]
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        if best is None or 4 * shared[best] <= 3 * len(self._threads[best]):
            self._threads.append(path)
            return None
        last, self._threads[best] = self._threads[best], path
        return LeftBranch(last, shared[best]) if shared[best] < len(last) else None

    def close(self) -> list[LeftBranch]:
        """The session ended; return what it leaves."""
        left = [LeftBranch(path, 0) for path in self._threads]
        self._threads = []
        return left
