"""What callers ask about keeping prefixes, checked. A refusal names field and limit."""

from __future__ import annotations

import math

from radixloop.tenants import MAX_PRIORITY
from radixloop.v1 import cache_pb2, inference_pb2

from runtime.access.caller import current_caller
from runtime.errors import InvalidRequest, NotForTenants
from runtime.services.convert import MAX_ID_CHARS, Tokens, checked_id

DEFAULT_LEASE_PRIORITY = 50


def public_tokens(
    request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest | cache_pb2.ExplainRequest,
) -> int:
    """How many leading tokens every salt may share; 0 when unset. Raises NotForTenants."""
    if not request.HasField("public_tokens"):
        return 0
    if current_caller().tenant is not None:
        # They are found among the prompts without a salt, which are the operators'.
        raise NotForTenants("public_tokens shares with all tenants")
    if request.public_tokens < 0:
        raise InvalidRequest("public_tokens", request.public_tokens, "must be at least 0")
    return request.public_tokens


def priority(request: inference_pb2.GenerateRequest | cache_pb2.LeaseRequest, default: int) -> int:
    """0 to 100: up to what the caller's key allows, or to what those have who name none. Raises InvalidRequest."""
    if not request.HasField("priority"):
        return default
    if not 0 <= request.priority <= MAX_PRIORITY:
        raise InvalidRequest("priority", request.priority, f"must be from 0 to {MAX_PRIORITY}")
    highest = max(default, current_caller().max_priority)
    if request.priority > highest:
        raise InvalidRequest("priority", request.priority, f"at most {highest} with this key, by the file of keys")
    return request.priority


def conversation_name(request: inference_pb2.GenerateRequest) -> str | None:
    """The caller's name for its conversation; None when unset."""
    if not request.HasField("conversation"):
        return None
    if request.HasField("session_id"):
        raise InvalidRequest("conversation", request.conversation, "not with session_id: a session is one already")
    return checked_id("conversation", request.conversation)


def conversation_ends(request: inference_pb2.GenerateRequest) -> bool:
    """Whether this is the last call of its conversation."""
    if request.conversation_ends and not request.HasField("conversation"):
        raise InvalidRequest("conversation_ends", True, "goes with conversation, which names what ends")
    return request.conversation_ends


def label(text: str) -> str:
    """A lease's label: at most 128 printable characters."""
    if len(text) > MAX_ID_CHARS or not text.isprintable():
        raise InvalidRequest("label", text, f"must be at most {MAX_ID_CHARS} printable characters")
    return text


def quota_share(request: cache_pb2.SetQuotaRequest) -> float | None:
    """A share of the pool, above 0 and at most 1; None lifts the quota."""
    if not request.HasField("share"):
        return None
    if math.isnan(request.share) or not 0 < request.share <= 1:
        raise InvalidRequest("share", request.share, "must be above 0 and at most 1, or unset to lift the quota")
    return request.share


def within_context(tokens: Tokens, context_length: int) -> Tokens:
    """The tokens, unless no request could ever send as many."""
    if len(tokens) > context_length:
        raise InvalidRequest("prompt", f"{len(tokens)} tokens", f"the model's context ends at {context_length}")
    return tokens
