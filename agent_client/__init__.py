"""Client of a Radixloop runtime: `RadixClient`, `AsyncRadixClient`, their results and errors.

Needs grpcio and protobuf only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .access import Access
    from .aio import AsyncGenerationStream, AsyncRadixClient, AsyncSession
    from .client import GenerationStream, RadixClient, Session
    from .errors import (
        Aborted,
        AlreadyExists,
        Cancelled,
        DeadlineExceeded,
        FailedPrecondition,
        Internal,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        RadixloopError,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
        Unimplemented,
    )
    from .keeping import Lease, Leases, Quota, SessionCut, ToolHold
    from .prompts import Chat
    from .results import (
        CacheNode,
        CacheStats,
        Choice,
        Delta,
        Finished,
        Generation,
        ModelInfo,
        Started,
        Timing,
        TokenLogprob,
        ToolCall,
        ToolCallDelta,
        Usage,
    )
    from .retry import RetryPolicy
    from .verdicts import Divergence, Explanation, Promotion, Span, TemplateDrift, Verdict
    from .watching import BlocksCleared, BlocksRemoved, BlocksStored, EventBatch, EventPosition

# Loaded on first use: the command line answers --help without loading gRPC.
_HOMES = {
    "access": ("Access",),
    "aio": ("AsyncGenerationStream", "AsyncRadixClient", "AsyncSession"),
    "client": ("GenerationStream", "RadixClient", "Session"),
    "errors": (
        "Aborted",
        "AlreadyExists",
        "Cancelled",
        "DeadlineExceeded",
        "FailedPrecondition",
        "Internal",
        "InvalidArgument",
        "NotFound",
        "PermissionDenied",
        "RadixloopError",
        "ResourceExhausted",
        "Unauthenticated",
        "Unavailable",
        "Unimplemented",
    ),
    "keeping": ("Lease", "Leases", "Quota", "SessionCut", "ToolHold"),
    "prompts": ("Chat",),
    "results": (
        "CacheNode",
        "CacheStats",
        "Choice",
        "Delta",
        "Finished",
        "Generation",
        "ModelInfo",
        "Started",
        "Timing",
        "TokenLogprob",
        "ToolCall",
        "ToolCallDelta",
        "Usage",
    ),
    "retry": ("RetryPolicy",),
    "verdicts": ("Divergence", "Explanation", "Promotion", "Span", "TemplateDrift", "Verdict"),
    "watching": ("BlocksCleared", "BlocksRemoved", "BlocksStored", "EventBatch", "EventPosition"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Aborted",
    "Access",
    "AlreadyExists",
    "AsyncGenerationStream",
    "AsyncRadixClient",
    "AsyncSession",
    "BlocksCleared",
    "BlocksRemoved",
    "BlocksStored",
    "CacheNode",
    "CacheStats",
    "Cancelled",
    "Chat",
    "Choice",
    "DeadlineExceeded",
    "Delta",
    "Divergence",
    "EventBatch",
    "EventPosition",
    "Explanation",
    "FailedPrecondition",
    "Finished",
    "Generation",
    "GenerationStream",
    "Internal",
    "InvalidArgument",
    "Lease",
    "Leases",
    "ModelInfo",
    "NotFound",
    "PermissionDenied",
    "Promotion",
    "Quota",
    "RadixClient",
    "RadixloopError",
    "ResourceExhausted",
    "RetryPolicy",
    "Session",
    "SessionCut",
    "Span",
    "Started",
    "TemplateDrift",
    "Timing",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "ToolHold",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
