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


class Calls:
    """Calls to be made at the first of `members` that takes them: `send` sends them to one and adds them to its runs.

    They go on to the next where one is gone or its queue is full, as long as the caller has not been told anything.
    """

    def __init__(self, members: Sequence[Member], send: Send) -> None:
        self._members = members
        self._send = send

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
        for left, member in enumerate(self._members, 1 - len(self._members)):
            runs = Runs()
            try:
                await self._send(member, runs)
                return await more(Running(member, runs, await runs.start()))
            except RadixloopError as error:
                runs.cancel()
                member.failed(error)
                if left == 0 or not _worth_another(error):
                    raise
                log.warning("the runtime at %s did not take a call, another is asked: %s", member.target, error)
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


def _worth_another(error: RadixloopError) -> bool:
    """Whether another runtime may do what this one did not."""
    return isinstance(error, Unavailable) or (isinstance(error, ResourceExhausted) and error.retry_after_s is not None)
