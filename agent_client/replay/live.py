"""Sessions that go on from what the model wrote, in the client's history or in the runtime's sessions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ..aio import AsyncGenerationStream, AsyncRadixClient
from ..errors import RadixloopError
from ..prompts import Chat, Prompt
from ..results import Event
from ..traces import Call, Session
from .driver import Driver, EventStream, Outgrown, State
from .options import ReplayOptions
from .plan import new_messages


class LiveDriver(Driver):
    """One pass over planned sessions with the model's own replies. Prompts that are plain text stay as recorded."""

    def __init__(self, client: AsyncRadixClient, options: ReplayOptions, **settings: Any) -> None:
        super().__init__(client, options, **settings)
        self._client = client

    async def _prompt(self, session: Session, call: Call, planned: Prompt, state: State) -> Prompt:
        new = None if state.last is None else new_messages(state.last, call)
        state.last = call
        if isinstance(call.prompt, str):
            return planned
        state.history = list(call.prompt) if new is None else [*state.history, *new]
        prompt = Chat(state.history, session.tools_of(call))
        limit = self._options.max_context
        if limit is not None:
            length = (await self._client.tokenize(prompt, salt=self._salt)).count
            if length + self._options.output_tokens > limit:
                raise Outgrown
        if not self._options.server_sessions:
            return prompt
        if state.fork_of is not None:
            state.server, state.fork_of = await state.fork_of.fork(), None
        if new is not None and state.server is not None:
            return Chat(new)
        # The history was rewritten (or begins): no session in the runtime extends to it.
        await self._close(state)
        state.server = await self._client.session(salt=self._salt)
        return prompt

    def _stream(self, prompt: Prompt, state: State, session: Session) -> EventStream:
        if state.server is None:
            return super()._stream(prompt, state, session)
        return state.server.stream(prompt, **self._generate_options())

    async def _answered(self, state: State, events: AsyncIterator[Event]) -> None:
        if isinstance(events, AsyncGenerationStream):
            state.history.append((await events.result()).as_message())

    async def _close(self, state: State) -> None:
        if state.server is None:
            return
        server, state.server = state.server, None
        # A session that cannot be closed is forgotten by the runtime when it has idled long enough.
        with contextlib.suppress(RadixloopError):
            await server.close()
