"""A runtime with no model: a token is a byte, a reply is a row of letters, the cache is a list of what it saw."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from radixloop.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    common_pb2,
    inference_pb2,
    inference_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
)

CONTEXT = 100_000
LONGEST_REPLY = 5000
LEASABLE = 1000


@dataclass
class Refusal:
    """How the next call of a method ends: at once, or after `after_messages` messages of a stream."""

    code: grpc.StatusCode
    message: str = "scripted"
    pushback_ms: str | None = None
    after_messages: int = 0


@dataclass
class Seen:
    """One Generate call as the runtime saw it."""

    request: inference_pb2.GenerateRequest
    prompt: bytes
    started_s: float
    ended_s: float = 0.0
    cancelled: bool = False


@dataclass
class ToyRuntime(
    inference_pb2_grpc.InferenceServicer, sessions_pb2_grpc.SessionsServicer, cache_pb2_grpc.CacheServicer
):
    """Serves from a thread pool; `refusals` holds, by method, what to refuse next."""

    token_delay_s: float = 0.0
    refusals: dict[str, list[Refusal]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, bytes] = field(default_factory=dict)
    flushes: list[Any] = field(default_factory=list)
    # What every choice writes instead of letters, and the calls that are found in it.
    script: str = ""
    tool_calls: list[common_pb2.ToolCall] = field(default_factory=list)
    # Leases that have not been released, by id, and every request for one.
    leases: dict[int, cache_pb2.LeaseRequest] = field(default_factory=dict)
    asked_leases: list[cache_pb2.LeaseRequest] = field(default_factory=list)
    # Where to listen; 0 takes a free port.
    port: int = 0
    # Key and certificate, PEM; None listens in the clear. And what callers showed as their right to call Generate.
    tls: tuple[bytes, bytes] | None = None
    tokens: set[str] = field(default_factory=set)
    model: str = "toy"

    def __post_init__(self) -> None:
        self._known: dict[bytes, list[bytes]] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(16))
        inference_pb2_grpc.add_InferenceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        sessions_pb2_grpc.add_SessionsServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        cache_pb2_grpc.add_CacheServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.health = health.HealthServicer()
        self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        address = f"127.0.0.1:{self.port}"
        if self.tls is None:
            bound = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, grpc.ssl_server_credentials([self.tls]))
        self.target = f"127.0.0.1:{bound}"
        self._server.start()
        self._started_s = time.monotonic()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def forget(self) -> None:
        """As new: nothing scripted, seen or cached."""
        self.token_delay_s, self.script, self.tool_calls = 0.0, "", []
        kept = (self.refusals, self.seen, self.counts, self.sessions, self.flushes, self._known)
        for each in (*kept, self.leases, self.asked_leases):
            each.clear()  # type: ignore[attr-defined]

    def calls(self, method: str) -> int:
        return self.counts.get(method, 0)

    def _enter(self, method: str, context: Any) -> Refusal | None:
        with self._lock:
            self.counts[method] = self.calls(method) + 1
            refusal = self.refusals[method].pop(0) if self.refusals.get(method) else None
        if refusal is not None and refusal.after_messages == 0:
            self._refuse(refusal, context)
        return refusal

    @staticmethod
    def _refuse(refusal: Refusal, context: Any) -> None:
        if refusal.pushback_ms is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", refusal.pushback_ms),))
        context.abort(refusal.code, refusal.message)

    def Generate(self, request: Any, context: Any) -> Any:
        refusal = self._enter("Generate", context)
        self.tokens.update(value for key, value in context.invocation_metadata() if key == "authorization")
        if request.HasField("session_id") and request.session_id not in self.sessions:
            context.abort(grpc.StatusCode.NOT_FOUND, f"session_id {request.session_id!r} is not open")
        prompt = self.sessions.get(request.session_id, b"") + encode(request.prompt)
        space = request.namespace.SerializeToString()
        seen = Seen(request, prompt, time.perf_counter())
        limit = len(self.script) or min(request.sampling.max_tokens, LONGEST_REPLY)
        context.add_callback(lambda: setattr(seen, "cancelled", not seen.ended_s))
        with self._lock:
            self.seen.append(seen)
            known = [] if request.bypass_cache else self._known.setdefault(space, [])
            cached = min(max((shared(prompt, other) for other in known), default=0), len(prompt) - 1)
            known.append(prompt)
        # As the runtime does: what looks like a call is text where none may be made.
        called = self.tool_calls and request.tool_choice.mode != inference_pb2.TOOL_MODE_NONE
        words = self.script.find("<tool_call>") if called and "<tool_call>" in self.script else 2**31
        reply = self.script.encode() or bytes(97 + (len(prompt) + i) % 26 for i in range(limit))
        usage = common_pb2.Usage(prompt_tokens=len(prompt), cached_tokens=cached, computed_tokens=len(prompt) - cached)
        ids = common_pb2.TokenIds(ids=list(prompt)) if request.return_prompt_ids else None
        started = inference_pb2.Started(request_id="toy", usage=usage, prompt_ids=ids)
        if not request.bypass_cache:
            found = common_pb2.VerdictSpan(end=cached, cause=common_pb2.CAUSE_CACHED)
            rest = common_pb2.VerdictSpan(start=cached, end=len(prompt), cause=common_pb2.CAUSE_NEVER_SEEN)
            started.verdict.spans.extend([found, rest] if cached else [rest])
        messages = [inference_pb2.GenerateResponse(started=started)]
        for i, token in enumerate(reply):
            for index in range(request.sampling.n or 1):
                delta = inference_pb2.Delta(index=index, text=chr(token), token_ids=[token])
                if request.prompt.WhichOneof("form") == "chat":
                    delta.content = chr(token) if i < words else ""
                if request.sampling.logprobs:
                    delta.logprobs.append(logprob_step(token, request.sampling.top_logprobs))
                if i == limit - 1:
                    scripted, cut = inference_pb2.FINISH_REASON_EOS, inference_pb2.FINISH_REASON_LENGTH
                    delta.finish_reason = scripted if self.script else cut
                    if called:
                        delta.tool_calls.extend(self.tool_calls)
                        delta.tool_call_deltas.extend(in_pieces(self.tool_calls))
                messages.append(inference_pb2.GenerateResponse(delta=delta))
        total = common_pb2.Usage()
        total.CopyFrom(usage)
        total.output_tokens = limit * (request.sampling.n or 1)
        finished = inference_pb2.Finished(
            usage=total, timing=inference_pb2.Timing(prefill_s=usage.computed_tokens / 1000)
        )
        if request.HasField("session_id"):
            finished.session_tokens = len(prompt) + limit
        for i, message in enumerate([*messages, inference_pb2.GenerateResponse(finished=finished)]):
            if refusal is not None and i == refusal.after_messages:
                self._refuse(refusal, context)
            if self.token_delay_s:
                time.sleep(self.token_delay_s)
            if not context.is_active():
                return
            if message.HasField("finished"):
                with self._lock:
                    known.append((prompt + reply)[:-1])
                    seen.ended_s = time.perf_counter()
                    if request.HasField("session_id"):
                        self.sessions[request.session_id] = prompt + reply
            yield message

    def Tokenize(self, request: Any, context: Any) -> Any:
        self._enter("Tokenize", context)
        tokens = encode(request.prompt)
        return inference_pb2.TokenizeResponse(
            token_ids=common_pb2.TokenIds(ids=list(tokens)), count=len(tokens), rendered=tokens.decode()
        )

    def Detokenize(self, request: Any, context: Any) -> Any:
        self._enter("Detokenize", context)
        ids = request.token_ids.le_int32
        return inference_pb2.DetokenizeResponse(text=bytes(ids[::4]).decode())

    def GetModelInfo(self, request: Any, context: Any) -> Any:
        self._enter("GetModelInfo", context)
        return inference_pb2.GetModelInfoResponse(
            model=self.model,
            context_length=CONTEXT,
            eos_token_ids=[0],
            incarnation=f"{self._started_s}",
            kv_dtype="int8",
        )

    def Open(self, request: Any, context: Any) -> Any:
        self._enter("Open", context)
        name = request.session_id or f"s{self.calls('Open')}"
        self.sessions[name] = b""
        return sessions_pb2.OpenSessionResponse(session_id=name, idle_timeout_s=600)

    def Fork(self, request: Any, context: Any) -> Any:
        self._enter("Fork", context)
        name = request.new_session_id or f"f{self.calls('Fork')}"
        self.sessions[name] = self.sessions[request.session_id]
        return sessions_pb2.ForkSessionResponse(session_id=name, tokens=len(self.sessions[name]))

    def Close(self, request: Any, context: Any) -> Any:
        self._enter("Close", context)
        tokens = self.sessions.pop(request.session_id, None)
        return sessions_pb2.CloseSessionResponse(closed=tokens is not None, tokens=len(tokens or b""))

    def GetStats(self, request: Any, context: Any) -> Any:
        self._enter("GetStats", context)
        return cache_pb2.GetStatsResponse(
            total_blocks=100,
            free_blocks=40,
            cached_blocks=50,
            active_blocks=10,
            prompt_tokens_total=sum(len(seen.prompt) for seen in self.seen),
            uptime_s=time.monotonic() - self._started_s,
        )

    def ListNodes(self, request: Any, context: Any) -> Any:
        self._enter("ListNodes", context)
        yield cache_pb2.Node(id=1, tokens=5, head="hello")
        yield cache_pb2.Node(id=2, parent_id=1, start=5, tokens=3, namespace=common_pb2.Namespace(salt=""))

    def Flush(self, request: Any, context: Any) -> Any:
        self._enter("Flush", context)
        self.flushes.append(request)
        with self._lock:
            self._known.clear()
        return cache_pb2.FlushResponse(flushed_tokens=7, freed_blocks=2)

    def Warm(self, request: Any, context: Any) -> Any:
        self._enter("Warm", context)
        tokens = len(encode(request.prompt))
        return cache_pb2.WarmResponse(usage=common_pb2.Usage(prompt_tokens=tokens, computed_tokens=tokens))

    def Lease(self, request: Any, context: Any) -> Any:
        self._enter("Lease", context)
        tokens = len(encode(request.prompt))
        if tokens > LEASABLE:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{tokens} tokens: at most {LEASABLE} may be leased")
        self.asked_leases.append(request)
        name = len(self.asked_leases)
        self.leases[name] = request
        info = cache_pb2.LeaseInfo(lease_id=name, tokens=tokens, ttl_s=request.ttl_s, label=request.label)
        return cache_pb2.LeaseResponse(lease=info, covered_tokens=tokens)

    def RenewLease(self, request: Any, context: Any) -> Any:
        self._enter("RenewLease", context)
        if request.lease_id not in self.leases:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        self.leases[request.lease_id].ttl_s = request.ttl_s
        return cache_pb2.LeaseInfo(lease_id=request.lease_id, ttl_s=request.ttl_s)

    def ReleaseLease(self, request: Any, context: Any) -> Any:
        self._enter("ReleaseLease", context)
        if self.leases.pop(request.lease_id, None) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        return cache_pb2.LeaseInfo(lease_id=request.lease_id)


def in_pieces(calls: list[common_pb2.ToolCall]) -> list[inference_pb2.ToolCallDelta]:
    """Each call's head and the two halves of its arguments."""
    pieces = []
    for rank, call in enumerate(calls):
        middle = len(call.arguments) // 2
        pieces.append(inference_pb2.ToolCallDelta(index=rank, id=call.id, name=call.name))
        pieces += [
            inference_pb2.ToolCallDelta(index=rank, arguments=half)
            for half in (call.arguments[:middle], call.arguments[middle:])
        ]
    return pieces


def encode(prompt: common_pb2.Prompt) -> bytes:
    """Text and chats as UTF-8, token ids as they are (below 256)."""
    form = prompt.WhichOneof("form")
    if form == "text":
        return prompt.text.encode()
    if form == "chat":
        tools = "".join(prompt.chat.tools)
        return (tools + "".join(f"<{m.role}>{m.content}" for m in prompt.chat.messages) + "<assistant>").encode()
    return bytes(prompt.token_ids.le_int32[::4])


def logprob_step(token: int, top: int) -> inference_pb2.LogprobStep:
    """The token itself at -0.5, and those after it, each half as likely again."""
    step = inference_pb2.LogprobStep(sampled=inference_pb2.TokenLogprob(token_id=token, logprob=-0.5))
    step.top.extend(inference_pb2.TokenLogprob(token_id=token + i, logprob=-0.5 - i) for i in range(top))
    return step


def shared(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
