"""What every route of the gateway uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radixloop.tenants import OPERATOR, KeyHolder

from ..prompts import Prompt
from .answering import Answer, Writer
from .cache_control import keep_all
from .conversations import Loop
from .fleet import Calls, Fleet
from .keeping import Breakpoint, HintDesk, KvHints, LeaseBook, Wishes
from .metrics import GatewayMetrics
from .sampling import SamplingFields
from .tenants import Tenants


@dataclass(frozen=True)
class Caller:
    """Whose request it is.

    Attributes:
        salt: of the tenant's namespace.
        place: what decides which runtime it goes to; the same for calls that should meet at one.
        conversation: its name at the runtime; None where the client names none.
        final: whether it is the conversation's last call.
        confined: whether it may not learn what other namespaces hold.
        explained: whether it wants to know why what missed did.
        max_priority: the highest that it may name.
    """

    salt: str | None
    place: str
    conversation: str | None
    final: bool
    confined: bool
    explained: bool
    max_priority: int


def caller_of(holder: KeyHolder, salt: str | None, loop: Loop, prompts: Sequence[Prompt], *, explained: bool) -> Caller:
    """Who asks for these prompts. Several together are no turn of a conversation."""
    conversation = loop.conversation(prompts[0]) if len(prompts) == 1 else None
    confined = holder.tenant not in (None, OPERATOR)
    place = loop.place(holder.tenant, prompts[0])
    return Caller(salt, place, conversation, loop.final, confined, explained, holder.max_priority)


class Front:
    """The runtimes, who may call, and what is counted and kept."""

    def __init__(self, fleet: Fleet, tenants: Tenants) -> None:
        self.fleet = fleet
        self.tenants = tenants
        self.metrics = GatewayMetrics(fleet)
        self._leases = LeaseBook(self.metrics.leased)
        self._hints = HintDesk(self._leases, self.metrics.hinted)

    def wishes(self, caller: Caller, marked: Sequence[Breakpoint], hints: KvHints | None) -> Wishes:
        """What a request wants kept. Raises ApiError for too much of it."""
        return Wishes(
            self._leases,
            self._hints,
            salt=caller.salt,
            loop=caller.place,
            max_priority=caller.max_priority,
            breakpoints=marked,
            hints=hints,
        )

    def wishes_of(self, caller: Caller, asked: SamplingFields) -> Wishes:
        """The same of a request to one of OpenAI's routes."""
        marked = keep_all(asked.nvext.cache_control if asked.nvext else None, "nvext.cache_control")
        return self.wishes(caller, marked, asked.kv_hints)

    def answer(self, calls: Calls, writer: Writer, wishes: Wishes, closed: Callable[[], None] | None = None) -> Answer:
        """The way to an answer; `closed` is told when it is over, however it ended."""
        return Answer(calls, writer, wishes, self.metrics.ended, closed or _nothing)


def _nothing() -> None:
    """Nothing is to be done when an answer is over."""
