"""The asyncio client: `RadixClient` with `await` in front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import grpc
import grpc.aio

from . import calls, keeping, results
from .base import HEALTH_POLL_S, HEALTH_TIMEOUT_S, ClientBase, SessionState, StreamState
from .channel import Deadline, health_name, health_request
from .errors import Cancelled, RadixloopError, Unavailable, from_rpc_error
from .generate_options import GenerateOptions, chat_prompt, generate_request
from .messages import ChatMessage
from .prompts import Prompt, TokenIds
from .retry import Safety
from .verdicts import Explanation
from .watching import EventBatch, EventPosition, Watch

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncRadixClient(ClientBase):
    """A connection to one runtime, for one event loop. An async context manager, or call `close`.

    `target` is HOST:PORT (default: the environment's RADIXLOOP_TARGET, else localhost:50051). `salt` and `adapter`
    are the cache namespace of every call that does not name its own. `timeout_s` limits every call that does not
    give its own, retries included. `access` is TLS and a token (default: the environment's, see `Access`), and
    `metadata` is sent with every call. Calls raise the errors of `agent_client.errors`; cancelling the task that waits
    for a call stops the work in the runtime.
    """

    _api: ClassVar[Any] = grpc.aio

    async def close(self) -> None:
        """Ends the connection; running calls are cancelled. Idempotent."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> results.Generation:
        """Runs a prompt (text, token ids, a list of chat messages, or a `Chat`) and waits for all of it."""
        return await self.stream(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGenerationStream:
        """The same, as events: `async for` over it, and `cancel` it or leave its block to stop the work."""
        request = generate_request(prompt, options, self._namespace)
        return AsyncGenerationStream(self, request, options.get("timeout_s"), Safety.REPEATABLE)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any] | str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> results.Generation:
        """Chat messages in the OpenAI shape, with tools, through the model's template."""
        return await self.generate(chat_prompt(messages, tools, template_kwargs), **options)

    async def session(
        self, session_id: str | None = None, *, salt: str | None = None, adapter: str | None = None
    ) -> AsyncSession:
        """Opens a session (`async with await client.session() as s`); a turn sends only what is new."""
        opened = await self._unary(calls.open_session(session_id, self._session_namespace(salt, adapter)))
        return AsyncSession(self, opened.session_id, 0, opened.idle_timeout_s)

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        add_special_tokens: bool = True,
        salt: str | None = None,
        public_tokens: int | None = None,
        plain: bool = False,
    ) -> results.Tokenized:
        """The token ids that `generate` would use now; `plain`: the tokenizer's own, whatever the runtime knows."""
        space = self._session_namespace(salt, None)
        call = calls.tokenize(
            prompt, space, add_special_tokens=add_special_tokens, public_tokens=public_tokens, plain=plain
        )
        return await self._unary(call)

    async def detokenize(self, token_ids: TokenIds, *, keep_special_tokens: bool = False) -> str:
        return await self._unary(calls.detokenize(token_ids, keep_special_tokens))

    async def model_info(self) -> results.ModelInfo:
        return await self._unary(calls.model_info())

    async def stats(self) -> results.CacheStats:
        return await self._unary(calls.stats())

    async def warm(self, prompt: Prompt) -> results.Usage:
        """Computes a prompt's KV in the client's namespace and generates nothing."""
        return await self._unary(calls.warm(prompt, self._namespace))

    async def flush(self, *, all_namespaces: bool = False) -> results.Flushed:
        """Forgets what is cached in the client's namespace, or in every namespace."""
        return await self._unary(calls.flush(None if all_namespaces else self._namespace))

    async def explain(
        self, prompt: Prompt | None = None, *, session_id: str | None = None, public_tokens: int | None = None
    ) -> Explanation:
        """Why each token of a prompt (or of a session's next turn) would hit or miss now. Changes nothing."""
        return await self._unary(keeping.explain(prompt, session_id, self._namespace, public_tokens))

    async def lease(
        self,
        prompt: Prompt | None = None,
        *,
        ttl_s: float,
        session_id: str | None = None,
        priority: int | None = None,
        label: str = "",
    ) -> keeping.Lease:
        """Keeps a prompt's (or a session's) cached prefix in preference to what is not leased, for `ttl_s` seconds.

        Raises ResourceExhausted when more is leased than may be.
        """
        call = keeping.lease(prompt, session_id, self._namespace, ttl_s=ttl_s, priority=priority, label=label)
        return await self._unary(call)

    async def renew_lease(self, lease_id: int, ttl_s: float) -> keeping.Lease:
        """Lets a lease end `ttl_s` seconds from now. Raises NotFound when it has ended."""
        return await self._unary(keeping.renew_lease(lease_id, ttl_s))

    async def release_lease(self, lease_id: int) -> keeping.Lease:
        """Ends a lease. Raises NotFound when it has ended."""
        return await self._unary(keeping.release_lease(lease_id))

    async def leases(self) -> keeping.Leases:
        return await self._unary(keeping.leases())

    async def set_quota(self, share: float | None) -> keeping.Quota:
        """Lets the client's namespace take at most this share of the pool; None lifts the limit."""
        return await self._unary(keeping.set_quota(self._namespace, share))

    async def quotas(self) -> tuple[keeping.Quota, ...]:
        return await self._unary(keeping.quotas())

    async def nodes(
        self, *, all_namespaces: bool = True, head_tokens: int | None = None
    ) -> AsyncIterator[results.CacheNode]:
        """The cached tree, parents before children."""
        request = self._nodes_request(all_namespaces, head_tokens)
        try:
            async for node in self._stubs.Cache.ListNodes(request, timeout=self._timeout_s, metadata=self._metadata):
                yield calls.node_from_proto(node)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def watch_events(
        self, after: EventPosition | None = None, *, heartbeat_s: float | None = None
    ) -> AsyncIterator[EventBatch]:
        """What comes into the cache and what goes, of all namespaces, without end. Close the iterator to stop.

        Goes on after `after` where the runtime still knows how, and begins with all that is cached otherwise.
        Does so by itself when the connection breaks; raises Unavailable when no retry that is allowed gets an answer.
        """
        place = Watch(after, heartbeat_s)
        attempt = 1
        while True:
            call = self._stubs.Cache.WatchEvents(place.request(), metadata=self._metadata)
            try:
                async for message in call:
                    attempt = 1
                    yield place.received(message)
                error: RadixloopError = Unavailable("the runtime ended the stream of events")
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error)
            finally:
                call.cancel()
            await asyncio.sleep(self._delay_or_raise(error, attempt, Safety.REPEATABLE, Deadline(None)))
            attempt += 1

    async def health(self, service: str = "") -> str:
        """SERVING, NOT_SERVING or SERVICE_UNKNOWN. Raises Unavailable when nobody answers."""
        request = health_request(service)
        try:
            return health_name(await self._stubs.health(request, timeout=HEALTH_TIMEOUT_S, metadata=self._metadata))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the runtime serves. Raises Unavailable with the last reason when it does not in time."""
        deadline = Deadline(timeout_s)
        while True:
            try:
                reason = await self.health()
            except RadixloopError as error:
                reason = str(error)
            if reason == "SERVING":
                return
            if not deadline.allows(HEALTH_POLL_S):
                raise self._not_ready(timeout_s, reason)
            await asyncio.sleep(HEALTH_POLL_S)

    async def _unary(self, call: calls.Unary[T]) -> T:
        method = getattr(getattr(self._stubs, call.service), call.method)
        deadline = Deadline(self._timeout_s)
        attempt = 1
        while True:
            try:
                return call.decode(await method(call.request, timeout=deadline.left_s(), metadata=self._metadata))
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error)
            await asyncio.sleep(self._delay_or_raise(error, attempt, call.safety, deadline))
            attempt += 1


class AsyncGenerationStream(StreamState):
    """The events of one call, an async iterator: `Started`, `Delta`s, `Finished`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> results.Event:
        while True:
            try:
                message = await self._call.read()
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error)
            except asyncio.CancelledError:
                # Raised when this task is cancelled, and also when `cancel` was called; only the first is the task's.
                self._call.cancel()
                if not self._cancelled:
                    raise
                raise Cancelled("the call was cancelled") from None
            else:
                if message is grpc.aio.EOF:
                    raise StopAsyncIteration
                event = self._receive(message)
                if event is not None:
                    return event
                continue
            await asyncio.sleep(self._restart_delay(error))
            self._call = self._start()

    async def result(self) -> results.Generation:
        """Reads the rest of the stream and returns everything since its start."""
        async for _ in self:
            pass
        return self._fold.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()


class AsyncSession(SessionState):
    """A growing list of tokens kept by the runtime. One turn at a time; `fork` to branch.

    `tokens` is its length after the last finished turn. Leaving the `async with` block closes it.
    """

    _client: AsyncRadixClient

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> results.Generation:
        """Appends what is new to the session and generates. Never retried once the turn may have started."""
        return await self.stream(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGenerationStream:
        """The same, as events. A turn that is cancelled or fails leaves the session as it was."""
        request = generate_request(prompt, options, session_id=self.id)
        return AsyncGenerationStream(self._client, request, options.get("timeout_s"), Safety.ONCE, self._turn_finished)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any] | str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> results.Generation:
        """The new messages of a chat (tools with the first turn)."""
        return await self.generate(chat_prompt(messages, tools, template_kwargs), **options)

    async def fork(self, new_session_id: str | None = None) -> AsyncSession:
        """A second session with the same tokens; both go on separately and share the KV."""
        forked = await self._client._unary(calls.fork_session(self.id, new_session_id))
        return AsyncSession(self._client, forked.session_id, forked.tokens, self.idle_timeout_s)

    async def truncate(self, *, tokens: int | None = None, messages: int | None = None) -> keeping.SessionCut:
        """Keeps so many tokens, or messages of a chat (where a turn ends): to rewind, or before a rewritten history."""
        cut = await self._client._unary(keeping.truncate_session(self.id, tokens, messages))
        self.tokens = cut.tokens
        return cut

    async def hold(self, tool: str) -> keeping.ToolHold:
        """The session waits for `tool`: keep its prefix as long as that usually takes, until the next turn."""
        return await self._client._unary(keeping.hold_session(self.id, tool))

    async def close(self) -> results.SessionClosed:
        """Idempotent."""
        return await self._client._unary(calls.close_session(self.id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        try:
            await self.close()
        except RadixloopError:
            # What went wrong inside the block matters more; the runtime forgets idle sessions by itself.
            if kind is None:
                raise
