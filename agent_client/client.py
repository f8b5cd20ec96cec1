"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import grpc

from . import calls, keeping, results
from .base import HEALTH_POLL_S, HEALTH_TIMEOUT_S, ClientBase, SessionState, StreamState
from .channel import Deadline, health_name, health_request
from .errors import RadixloopError, Unavailable, from_rpc_error
from .generate_options import GenerateOptions, chat_prompt, generate_request
from .messages import ChatMessage
from .prompts import Prompt, TokenIds
from .retry import Safety
from .verdicts import Explanation
from .watching import EventBatch, EventPosition, Watch

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class RadixClient(ClientBase):
    """A connection to one runtime. Thread-safe; a context manager, or call `close`.

    `target` is HOST:PORT (default: the environment's RADIXLOOP_TARGET, else localhost:50051). `salt` and `adapter`
    are the cache namespace of every call that does not name its own. `timeout_s` limits every call that does not
    give its own, retries included. `access` is TLS and a token (default: the environment's, see `Access`), and
    `metadata` is sent with every call. Calls raise the errors of `agent_client.errors`.
    """

    _api: ClassVar[Any] = grpc

    def close(self) -> None:
        """Ends the connection; running calls are cancelled. Idempotent."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> results.Generation:
        """Runs a prompt (text, token ids, a list of chat messages, or a `Chat`) and waits for all of it."""
        return self.stream(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationStream:
        """The same, as events: iterate it, and `cancel` it or leave its `with` block to stop the work."""
        request = generate_request(prompt, options, self._namespace)
        return GenerationStream(self, request, options.get("timeout_s"), Safety.REPEATABLE)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any] | str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> results.Generation:
        """Chat messages in the OpenAI shape, with tools, through the model's template."""
        return self.generate(chat_prompt(messages, tools, template_kwargs), **options)

    def session(self, session_id: str | None = None, *, salt: str | None = None, adapter: str | None = None) -> Session:
        """Opens a session: the runtime keeps its tokens, and a turn sends only what is new."""
        opened = self._unary(calls.open_session(session_id, self._session_namespace(salt, adapter)))
        return Session(self, opened.session_id, 0, opened.idle_timeout_s)

    def tokenize(
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
        return self._unary(call)

    def detokenize(self, token_ids: TokenIds, *, keep_special_tokens: bool = False) -> str:
        return self._unary(calls.detokenize(token_ids, keep_special_tokens))

    def model_info(self) -> results.ModelInfo:
        return self._unary(calls.model_info())

    def stats(self) -> results.CacheStats:
        return self._unary(calls.stats())

    def warm(self, prompt: Prompt) -> results.Usage:
        """Computes a prompt's KV in the client's namespace and generates nothing."""
        return self._unary(calls.warm(prompt, self._namespace))

    def flush(self, *, all_namespaces: bool = False) -> results.Flushed:
        """Forgets what is cached in the client's namespace, or in every namespace."""
        return self._unary(calls.flush(None if all_namespaces else self._namespace))

    def explain(
        self, prompt: Prompt | None = None, *, session_id: str | None = None, public_tokens: int | None = None
    ) -> Explanation:
        """Why each token of a prompt (or of a session's next turn) would hit or miss now. Changes nothing."""
        return self._unary(keeping.explain(prompt, session_id, self._namespace, public_tokens))

    def lease(
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
        return self._unary(call)

    def renew_lease(self, lease_id: int, ttl_s: float) -> keeping.Lease:
        """Lets a lease end `ttl_s` seconds from now. Raises NotFound when it has ended."""
        return self._unary(keeping.renew_lease(lease_id, ttl_s))

    def release_lease(self, lease_id: int) -> keeping.Lease:
        """Ends a lease. Raises NotFound when it has ended."""
        return self._unary(keeping.release_lease(lease_id))

    def leases(self) -> keeping.Leases:
        return self._unary(keeping.leases())

    def set_quota(self, share: float | None) -> keeping.Quota:
        """Lets the client's namespace take at most this share of the pool; None lifts the limit."""
        return self._unary(keeping.set_quota(self._namespace, share))

    def quotas(self) -> tuple[keeping.Quota, ...]:
        return self._unary(keeping.quotas())

    def nodes(self, *, all_namespaces: bool = True, head_tokens: int | None = None) -> Iterator[results.CacheNode]:
        """The cached tree, parents before children."""
        request = self._nodes_request(all_namespaces, head_tokens)
        try:
            for node in self._stubs.Cache.ListNodes(request, timeout=self._timeout_s, metadata=self._metadata):
                yield calls.node_from_proto(node)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def watch_events(
        self, after: EventPosition | None = None, *, heartbeat_s: float | None = None
    ) -> Iterator[EventBatch]:
        """What comes into the cache and what goes, of all namespaces, without end. Close the iterator to stop.

        Goes on after `after` where the runtime still knows how, and begins with all that is cached otherwise.
        Does so by itself when the connection breaks; raises Unavailable when no retry that is allowed gets an answer.
        """
        place = Watch(after, heartbeat_s)
        attempt = 1
        while True:
            call = self._stubs.Cache.WatchEvents(place.request(), metadata=self._metadata)
            try:
                for message in call:
                    attempt = 1
                    yield place.received(message)
                error: RadixloopError = Unavailable("the runtime ended the stream of events")
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error)
            finally:
                call.cancel()
            time.sleep(self._delay_or_raise(error, attempt, Safety.REPEATABLE, Deadline(None)))
            attempt += 1

    def health(self, service: str = "") -> str:
        """SERVING, NOT_SERVING or SERVICE_UNKNOWN. Raises Unavailable when nobody answers."""
        request = health_request(service)
        try:
            return health_name(self._stubs.health(request, timeout=HEALTH_TIMEOUT_S, metadata=self._metadata))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the runtime serves. Raises Unavailable with the last reason when it does not in time."""
        deadline = Deadline(timeout_s)
        while True:
            try:
                reason = self.health()
            except RadixloopError as error:
                reason = str(error)
            if reason == "SERVING":
                return
            if not deadline.allows(HEALTH_POLL_S):
                raise self._not_ready(timeout_s, reason)
            time.sleep(HEALTH_POLL_S)

    def _unary(self, call: calls.Unary[T]) -> T:
        method = getattr(getattr(self._stubs, call.service), call.method)
        deadline = Deadline(self._timeout_s)
        attempt = 1
        while True:
            try:
                return call.decode(method(call.request, timeout=deadline.left_s(), metadata=self._metadata))
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error)
            time.sleep(self._delay_or_raise(error, attempt, call.safety, deadline))
            attempt += 1


class GenerationStream(StreamState):
    """The events of one call, an iterator: `Started`, `Delta`s, `Finished`. For one thread; `cancel` from any."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> results.Event:
        while True:
            try:
                event = self._receive(next(self._call))
            except grpc.RpcError as rpc_error:
                error = from_rpc_error(rpc_error)
            else:
                if event is not None:
                    return event
                continue
            time.sleep(self._restart_delay(error))
            self._call = self._start()

    def result(self) -> results.Generation:
        """Reads the rest of the stream and returns everything since its start."""
        for _ in self:
            pass
        return self._fold.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()


class Session(SessionState):
    """A growing list of tokens kept by the runtime. One turn at a time; `fork` to branch.

    `tokens` is its length after the last finished turn. Leaving the `with` block closes it.
    """

    _client: RadixClient

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> results.Generation:
        """Appends what is new to the session and generates. Never retried once the turn may have started."""
        return self.stream(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationStream:
        """The same, as events. A turn that is cancelled or fails leaves the session as it was."""
        request = generate_request(prompt, options, session_id=self.id)
        return GenerationStream(self._client, request, options.get("timeout_s"), Safety.ONCE, self._turn_finished)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any] | str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> results.Generation:
        """The new messages of a chat (tools with the first turn)."""
        return self.generate(chat_prompt(messages, tools, template_kwargs), **options)

    def fork(self, new_session_id: str | None = None) -> Session:
        """A second session with the same tokens; both go on separately and share the KV."""
        forked = self._client._unary(calls.fork_session(self.id, new_session_id))
        return Session(self._client, forked.session_id, forked.tokens, self.idle_timeout_s)

    def truncate(self, *, tokens: int | None = None, messages: int | None = None) -> keeping.SessionCut:
        """Keeps so many tokens, or messages of a chat (where a turn ends): to rewind, or before a rewritten history."""
        cut = self._client._unary(keeping.truncate_session(self.id, tokens, messages))
        self.tokens = cut.tokens
        return cut

    def hold(self, tool: str) -> keeping.ToolHold:
        """The session waits for `tool`: keep its prefix as long as that usually takes, until the next turn."""
        return self._client._unary(keeping.hold_session(self.id, tool))

    def close(self) -> results.SessionClosed:
        """Idempotent."""
        return self._client._unary(calls.close_session(self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            self.close()
        except RadixloopError:
            # What went wrong inside the block matters more; the runtime forgets idle sessions by itself.
            if kind is None:
                raise
