from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_CACHED: _ClassVar[Cause]
    CAUSE_LAST_TOKEN: _ClassVar[Cause]
    CAUSE_EVICTED: _ClassVar[Cause]
    CAUSE_LEASE_EXPIRED: _ClassVar[Cause]
    CAUSE_IN_FLIGHT: _ClassVar[Cause]
    CAUSE_OTHER_NAMESPACE: _ClassVar[Cause]
    CAUSE_DIVERGED: _ClassVar[Cause]
    CAUSE_NEVER_SEEN: _ClassVar[Cause]

class DriftKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRIFT_KIND_UNSPECIFIED: _ClassVar[DriftKind]
    DRIFT_KIND_DROPS_REASONING: _ClassVar[DriftKind]
    DRIFT_KIND_REWRITES_HISTORY: _ClassVar[DriftKind]
    DRIFT_KIND_READS_THE_CLOCK: _ClassVar[DriftKind]
    DRIFT_KIND_REWRITES_CALLS: _ClassVar[DriftKind]
CAUSE_UNSPECIFIED: Cause
CAUSE_CACHED: Cause
CAUSE_LAST_TOKEN: Cause
CAUSE_EVICTED: Cause
CAUSE_LEASE_EXPIRED: Cause
CAUSE_IN_FLIGHT: Cause
CAUSE_OTHER_NAMESPACE: Cause
CAUSE_DIVERGED: Cause
CAUSE_NEVER_SEEN: Cause
DRIFT_KIND_UNSPECIFIED: DriftKind
DRIFT_KIND_DROPS_REASONING: DriftKind
DRIFT_KIND_REWRITES_HISTORY: DriftKind
DRIFT_KIND_READS_THE_CLOCK: DriftKind
DRIFT_KIND_REWRITES_CALLS: DriftKind

class TokenIds(_message.Message):
    __slots__ = ("ids", "le_int32")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LE_INT32_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    le_int32: bytes
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., le_int32: _Optional[bytes] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("salt", "adapter")
    SALT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    salt: str
    adapter: str
    def __init__(self, salt: _Optional[str] = ..., adapter: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id", "name")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages", "tools", "template_kwargs")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedScalarFieldContainer[str]
    template_kwargs: str
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[str]] = ..., template_kwargs: _Optional[str] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("token_ids", "text", "chat")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    token_ids: TokenIds
    text: str
    chat: Chat
    def __init__(self, token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ...) -> None: ...

class CachedTokens(_message.Message):
    __slots__ = ("device", "host", "disk")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    device: int
    host: int
    disk: int
    def __init__(self, device: _Optional[int] = ..., host: _Optional[int] = ..., disk: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "cached_by_tier", "output_tokens", "computed_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    cached_by_tier: CachedTokens
    output_tokens: int
    computed_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cached_by_tier: _Optional[_Union[CachedTokens, _Mapping]] = ..., output_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ...) -> None: ...

class VerdictSpan(_message.Message):
    __slots__ = ("start", "end", "cause", "gone_s", "beside")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    GONE_S_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    cause: Cause
    gone_s: float
    beside: _containers.RepeatedCompositeFieldContainer[TokenIds]
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., cause: _Optional[_Union[Cause, str]] = ..., gone_s: _Optional[float] = ..., beside: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("spans", "promotion")
    SPANS_FIELD_NUMBER: _ClassVar[int]
    PROMOTION_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[VerdictSpan]
    promotion: Promotion
    def __init__(self, spans: _Optional[_Iterable[_Union[VerdictSpan, _Mapping]]] = ..., promotion: _Optional[_Union[Promotion, _Mapping]] = ...) -> None: ...

class Promotion(_message.Message):
    __slots__ = ("host_tokens", "disk_tokens", "fetch_s", "compute_s", "fetched", "kv_dtype")
    HOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    host_tokens: int
    disk_tokens: int
    fetch_s: float
    compute_s: float
    fetched: bool
    kv_dtype: str
    def __init__(self, host_tokens: _Optional[int] = ..., disk_tokens: _Optional[int] = ..., fetch_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., fetched: bool = ..., kv_dtype: _Optional[str] = ...) -> None: ...

class TemplateDrift(_message.Message):
    __slots__ = ("kind", "detail", "message_index")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    kind: DriftKind
    detail: str
    message_index: int
    def __init__(self, kind: _Optional[_Union[DriftKind, str]] = ..., detail: _Optional[str] = ..., message_index: _Optional[int] = ...) -> None: ...

class Divergence(_message.Message):
    __slots__ = ("position", "shared", "prompt", "stored", "message_index", "role", "offset", "template")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    position: int
    shared: str
    prompt: str
    stored: _containers.RepeatedScalarFieldContainer[str]
    message_index: int
    role: str
    offset: int
    template: TemplateDrift
    def __init__(self, position: _Optional[int] = ..., shared: _Optional[str] = ..., prompt: _Optional[str] = ..., stored: _Optional[_Iterable[str]] = ..., message_index: _Optional[int] = ..., role: _Optional[str] = ..., offset: _Optional[int] = ..., template: _Optional[_Union[TemplateDrift, _Mapping]] = ...) -> None: ...
