"""Every unary call of the API as data: the method, the request, how to read the answer, and whether it may be repeated.

Both clients run these; only how they wait differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from radixloop.v1 import cache_pb2, common_pb2, inference_pb2, sessions_pb2

from . import results
from .folding import usage_from_proto
from .generate_options import namespace_parts
from .prompts import Prompt, TokenIds, ids_from_proto, ids_to_proto, prompt_to_proto
from .retry import Safety
from .verdicts import TemplateDrift, drift_from_proto

T = TypeVar("T")


@dataclass(frozen=True)
class Unary(Generic[T]):
    """One call that answers with one message."""

    service: str
    method: str
    request: Any
    decode: Callable[[Any], T]
    safety: Safety = Safety.REPEATABLE


def _same_fields(kind: type[T], **converters: Callable[[Any], Any]) -> Callable[[Any], T]:
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]

    def decode(message: Any) -> T:
        values = {name: getattr(message, name) for name in names}
        return kind(
            **{name: converters[name](value) if name in converters else value for name, value in values.items()}
        )

    return decode


def tokenize(
    prompt: Prompt, space: common_pb2.Namespace, *, add_special_tokens: bool, public_tokens: int | None, plain: bool
) -> Unary[results.Tokenized]:
    request = inference_pb2.TokenizeRequest(
        prompt=prompt_to_proto(prompt),
        add_special_tokens=add_special_tokens,
        namespace=space,
        public_tokens=public_tokens,
        plain=plain,
    )
    return Unary("Inference", "Tokenize", request, _tokenized)


def _tokenized(message: inference_pb2.TokenizeResponse) -> results.Tokenized:
    rendered = message.rendered if message.HasField("rendered") else None
    return results.Tokenized(ids_from_proto(message.token_ids), rendered)


def detokenize(token_ids: TokenIds, keep_special_tokens: bool) -> Unary[str]:
    request = inference_pb2.DetokenizeRequest(
        token_ids=ids_to_proto(token_ids), keep_special_tokens=keep_special_tokens
    )
    return Unary("Inference", "Detokenize", request, lambda message: message.text)


def model_info() -> Unary[results.ModelInfo]:
    decode = _same_fields(results.ModelInfo, eos_token_ids=tuple, template_drifts=_drifts)
    return Unary("Inference", "GetModelInfo", inference_pb2.GetModelInfoRequest(), decode)


def _drifts(drifts: Iterable[common_pb2.TemplateDrift]) -> tuple[TemplateDrift, ...]:
    return tuple(drift_from_proto(drift) for drift in drifts)


def stats() -> Unary[results.CacheStats]:
    decode = _same_fields(results.CacheStats, tiers=_tiers)
    return Unary("Cache", "GetStats", cache_pb2.GetStatsRequest(), decode)


def _tiers(tiers: Iterable[cache_pb2.TierStats]) -> tuple[results.TierStats, ...]:
    decode = _same_fields(results.TierStats)
    return tuple(decode(tier) for tier in tiers)


def flush(space: common_pb2.Namespace | None) -> Unary[results.Flushed]:
    request = cache_pb2.FlushRequest(namespace=space)
    return Unary("Cache", "Flush", request, lambda done: results.Flushed(done.flushed_tokens, done.freed_blocks))


def warm(prompt: Prompt, space: common_pb2.Namespace) -> Unary[results.Usage]:
    request = cache_pb2.WarmRequest(prompt=prompt_to_proto(prompt), namespace=space)
    return Unary("Cache", "Warm", request, lambda message: usage_from_proto(message.usage))


def open_session(session_id: str | None, space: common_pb2.Namespace) -> Unary[results.SessionOpened]:
    request = sessions_pb2.OpenSessionRequest(session_id=session_id, namespace=space)
    return Unary("Sessions", "Open", request, _same_fields(results.SessionOpened), Safety.ONCE)


def fork_session(session_id: str, new_session_id: str | None) -> Unary[results.SessionForked]:
    request = sessions_pb2.ForkSessionRequest(session_id=session_id, new_session_id=new_session_id)
    return Unary("Sessions", "Fork", request, _same_fields(results.SessionForked), Safety.ONCE)


def close_session(session_id: str) -> Unary[results.SessionClosed]:
    request = sessions_pb2.CloseSessionRequest(session_id=session_id)
    return Unary("Sessions", "Close", request, _same_fields(results.SessionClosed))


def node_from_proto(node: cache_pb2.Node) -> results.CacheNode:
    salt, adapter = namespace_parts(node.namespace)
    return results.CacheNode(
        id=node.id,
        parent_id=node.parent_id,
        salt=salt,
        adapter=adapter,
        start=node.start,
        tokens=node.tokens,
        blocks=node.blocks,
        hits=node.hits,
        idle_s=node.idle_s,
        holders=node.holders,
        children=node.children,
        head=node.head,
    )
