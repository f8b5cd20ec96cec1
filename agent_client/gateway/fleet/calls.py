"""The calls of one HTTP request, made at one runtime, and at another where that one is gone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import RadixloopError, ResourceExhausted, Unavailable
from ...generate_options import GenerateOptions
from ...prompts import Prompt
from ...results import Generation, Started
from ..runs import Runs
from .member import Member

log = logging.getLogger(__name__)

T = TypeVar("T")
Send = Callable[[Member, Runs], Awaitable[None]]


@dataclass(frozen=True)
class Running:
    """Calls that were admitted: where, and what each said first."""

    member: Member
    runs: Runs
    started: Sequence[Started]


def worth_another(error: RadixloopError) -> bool:
    """Whether another runtime may do what this one did not: it is gone, or its queue is full."""
    return isinstance(error, Unavailable) or (isinstance(error, ResourceExhausted) and error.retry_after_s is not None)


@dataclass(frozen=True)
class Attempt:
    """One way to make the calls: `send` sends them to `member` and adds them to the runs.

    `gives_way` tells after which errors the next way is tried.
    """

    member: Member
    send: Send
    gives_way: Callable[[RadixloopError], bool] = worth_another


class Calls:
    """Calls to be made in the first of several ways that works, as long as the caller has not been told anything."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._attempts = attempts

    async def begin(self) -> Running:
        """Waits until the calls are admitted. Raises the runtime's error; cancelled, it ends what it began."""

        async def nothing_more(running: Running) -> Running:
            return running

        return await self._tried(nothing_more)

    async def finish(self) -> tuple[Running, list[Generation]]:
        """The same, and waits for all that they write: a runtime that dies meanwhile costs time only."""

        async def results(running: Running) -> tuple[Running, list[Generation]]:
            return running, await running.runs.results()

        return await self._tried(results)

    async def _tried(self, more: Callable[[Running], Awaitable[T]]) -> T:
        for left, attempt in enumerate(self._attempts, 1 - len(self._attempts)):
            runs, member = Runs(), attempt.member
            try:
                await attempt.send(member, runs)
                return await more(Running(member, runs, await runs.start()))
            except RadixloopError as error:
                runs.cancel()
                member.failed(error)
                if left == 0 or not attempt.gives_way(error):
                    raise
                log.warning("the runtime at %s did not take a call, which is tried again: %s", member.target, error)
            except BaseException:
                runs.cancel()
                raise
        raise Unavailable("there is no runtime to ask")


def prompts_with(prompts: Sequence[Prompt], options: GenerateOptions) -> Send:
    """Sends prompts side by side, all with the same options."""

    async def send(member: Member, runs: Runs) -> None:
        for prompt in prompts:
            runs.add(member.client.stream(prompt, **options))

    return send
