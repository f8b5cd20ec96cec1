from radixloop.v1 import common_pb2 as _common_pb2
from radixloop.v1 import events_pb2 as _events_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("total_blocks", "free_blocks", "active_blocks", "cached_blocks", "block_size", "cached_tokens", "nodes", "max_depth", "namespaces", "prompt_tokens_total", "hit_tokens_total", "computed_tokens_total", "output_tokens_total", "evicted_tokens_total", "evicted_blocks_total", "copied_tokens_total", "preemptions_total", "requests_total", "running_requests", "waiting_requests", "sessions", "unused_slots", "uptime_s", "cancelled_total", "failed_total")
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
    def __init__(self, total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., active_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., nodes: _Optional[int] = ..., max_depth: _Optional[int] = ..., namespaces: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., hit_tokens_total: _Optional[int] = ..., computed_tokens_total: _Optional[int] = ..., output_tokens_total: _Optional[int] = ..., evicted_tokens_total: _Optional[int] = ..., evicted_blocks_total: _Optional[int] = ..., copied_tokens_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., requests_total: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., sessions: _Optional[int] = ..., unused_slots: _Optional[int] = ..., uptime_s: _Optional[float] = ..., cancelled_total: _Optional[int] = ..., failed_total: _Optional[int] = ...) -> None: ...

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
