from radixloop.v1 import common_pb2 as _common_pb2
from radixloop.v1 import events_pb2 as _events_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("total_blocks", "free_blocks", "active_blocks", "cached_blocks", "block_size", "cached_tokens", "nodes", "max_depth", "namespaces", "prompt_tokens_total", "hit_tokens_total", "computed_tokens_total", "output_tokens_total", "evicted_tokens_total", "evicted_blocks_total", "copied_tokens_total", "preemptions_total", "requests_total", "running_requests", "waiting_requests", "sessions", "unused_slots", "uptime_s", "cancelled_total", "failed_total", "leases", "leased_tokens", "leasable_tokens", "lease_refusals_total", "tool_holds_total", "tool_holds_refused_total", "eviction", "shared_blocks", "tiers")
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COPIED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    UNUSED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_REFUSALS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOOL_HOLDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOOL_HOLDS_REFUSED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    total_blocks: int
    free_blocks: int
    active_blocks: int
    cached_blocks: int
    block_size: int
    cached_tokens: int
    nodes: int
    max_depth: int
    namespaces: int
    prompt_tokens_total: int
    hit_tokens_total: int
    computed_tokens_total: int
    output_tokens_total: int
    evicted_tokens_total: int
    evicted_blocks_total: int
    copied_tokens_total: int
    preemptions_total: int
    requests_total: int
    running_requests: int
    waiting_requests: int
    sessions: int
    unused_slots: int
    uptime_s: float
    cancelled_total: int
    failed_total: int
    leases: int
    leased_tokens: int
    leasable_tokens: int
    lease_refusals_total: int
    tool_holds_total: int
    tool_holds_refused_total: int
    eviction: str
    shared_blocks: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    def __init__(self, total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., active_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., nodes: _Optional[int] = ..., max_depth: _Optional[int] = ..., namespaces: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., hit_tokens_total: _Optional[int] = ..., computed_tokens_total: _Optional[int] = ..., output_tokens_total: _Optional[int] = ..., evicted_tokens_total: _Optional[int] = ..., evicted_blocks_total: _Optional[int] = ..., copied_tokens_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., requests_total: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., sessions: _Optional[int] = ..., unused_slots: _Optional[int] = ..., uptime_s: _Optional[float] = ..., cancelled_total: _Optional[int] = ..., failed_total: _Optional[int] = ..., leases: _Optional[int] = ..., leased_tokens: _Optional[int] = ..., leasable_tokens: _Optional[int] = ..., lease_refusals_total: _Optional[int] = ..., tool_holds_total: _Optional[int] = ..., tool_holds_refused_total: _Optional[int] = ..., eviction: _Optional[str] = ..., shared_blocks: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("name", "total_blocks", "used_blocks", "fetched_tokens_total", "failed_blocks_total", "block_bytes", "given_up")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    name: str
    total_blocks: int
    used_blocks: int
    fetched_tokens_total: int
    failed_blocks_total: int
    block_bytes: int
    given_up: bool
    def __init__(self, name: _Optional[str] = ..., total_blocks: _Optional[int] = ..., used_blocks: _Optional[int] = ..., fetched_tokens_total: _Optional[int] = ..., failed_blocks_total: _Optional[int] = ..., block_bytes: _Optional[int] = ..., given_up: bool = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("namespace", "head_tokens")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    HEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.Namespace
    head_tokens: int
    def __init__(self, namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., head_tokens: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "parent_id", "namespace", "start", "tokens", "blocks", "hits", "idle_s", "holders", "children", "head")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    id: int
    parent_id: int
    namespace: _common_pb2.Namespace
    start: int
    tokens: int
    blocks: int
    hits: int
    idle_s: float
    holders: int
    children: int
    head: str
    def __init__(self, id: _Optional[int] = ..., parent_id: _Optional[int] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., start: _Optional[int] = ..., tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., hits: _Optional[int] = ..., idle_s: _Optional[float] = ..., holders: _Optional[int] = ..., children: _Optional[int] = ..., head: _Optional[str] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.Namespace
    def __init__(self, namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("flushed_tokens", "freed_blocks")
    FLUSHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    flushed_tokens: int
    freed_blocks: int
    def __init__(self, flushed_tokens: _Optional[int] = ..., freed_blocks: _Optional[int] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("prompt", "namespace")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    prompt: _common_pb2.Prompt
    namespace: _common_pb2.Namespace
    def __init__(self, prompt: _Optional[_Union[_common_pb2.Prompt, _Mapping]] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ...) -> None: ...

class WarmResponse(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: _common_pb2.Usage
    def __init__(self, usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("prompt", "session_id", "namespace", "public_tokens")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt: _common_pb2.Prompt
    session_id: str
    namespace: _common_pb2.Namespace
    public_tokens: int
    def __init__(self, prompt: _Optional[_Union[_common_pb2.Prompt, _Mapping]] = ..., session_id: _Optional[str] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., public_tokens: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "verdict", "divergence", "prefill_s_per_token", "estimated_s", "eviction")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_S_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    verdict: _common_pb2.Verdict
    divergence: _common_pb2.Divergence
    prefill_s_per_token: float
    estimated_s: float
    eviction: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., verdict: _Optional[_Union[_common_pb2.Verdict, _Mapping]] = ..., divergence: _Optional[_Union[_common_pb2.Divergence, _Mapping]] = ..., prefill_s_per_token: _Optional[float] = ..., estimated_s: _Optional[float] = ..., eviction: _Optional[str] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("prompt", "session_id", "namespace", "ttl_s", "priority", "label")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    prompt: _common_pb2.Prompt
    session_id: str
    namespace: _common_pb2.Namespace
    ttl_s: float
    priority: int
    label: str
    def __init__(self, prompt: _Optional[_Union[_common_pb2.Prompt, _Mapping]] = ..., session_id: _Optional[str] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., ttl_s: _Optional[float] = ..., priority: _Optional[int] = ..., label: _Optional[str] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("lease", "covered_tokens")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    COVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease: LeaseInfo
    covered_tokens: int
    def __init__(self, lease: _Optional[_Union[LeaseInfo, _Mapping]] = ..., covered_tokens: _Optional[int] = ...) -> None: ...

class LeaseInfo(_message.Message):
    __slots__ = ("lease_id", "tokens", "namespace", "priority", "ttl_s", "label")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    tokens: int
    namespace: _common_pb2.Namespace
    priority: int
    ttl_s: float
    label: str
    def __init__(self, lease_id: _Optional[int] = ..., tokens: _Optional[int] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., priority: _Optional[int] = ..., ttl_s: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "ttl_s")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    ttl_s: float
    def __init__(self, lease_id: _Optional[int] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    def __init__(self, lease_id: _Optional[int] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "leased_tokens", "leasable_tokens")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseInfo]
    leased_tokens: int
    leasable_tokens: int
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseInfo, _Mapping]]] = ..., leased_tokens: _Optional[int] = ..., leasable_tokens: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("namespace", "share")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.Namespace
    share: float
    def __init__(self, namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., share: _Optional[float] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("namespace", "share", "blocks")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.Namespace
    share: float
    blocks: int
    def __init__(self, namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., share: _Optional[float] = ..., blocks: _Optional[int] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ...) -> None: ...
