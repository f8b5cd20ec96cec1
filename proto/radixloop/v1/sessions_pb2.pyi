from radixloop.v1 import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenSessionRequest(_message.Message):
    __slots__ = ("session_id", "namespace")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    namespace: _common_pb2.Namespace
    def __init__(self, session_id: _Optional[str] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "idle_timeout_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    idle_timeout_s: float
    def __init__(self, session_id: _Optional[str] = ..., idle_timeout_s: _Optional[float] = ...) -> None: ...

class ForkSessionRequest(_message.Message):
    __slots__ = ("session_id", "new_session_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    new_session_id: str
    def __init__(self, session_id: _Optional[str] = ..., new_session_id: _Optional[str] = ...) -> None: ...

class ForkSessionResponse(_message.Message):
    __slots__ = ("session_id", "tokens")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    tokens: int
    def __init__(self, session_id: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("closed", "tokens")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    closed: bool
    tokens: int
    def __init__(self, closed: bool = ..., tokens: _Optional[int] = ...) -> None: ...

class TruncateSessionRequest(_message.Message):
    __slots__ = ("session_id", "tokens", "messages")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    tokens: int
    messages: int
    def __init__(self, session_id: _Optional[str] = ..., tokens: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class TruncateSessionResponse(_message.Message):
    __slots__ = ("tokens", "messages", "superseded_tokens")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    messages: int
    superseded_tokens: int
    def __init__(self, tokens: _Optional[int] = ..., messages: _Optional[int] = ..., superseded_tokens: _Optional[int] = ...) -> None: ...

class HoldSessionRequest(_message.Message):
    __slots__ = ("session_id", "tool")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    tool: str
    def __init__(self, session_id: _Optional[str] = ..., tool: _Optional[str] = ...) -> None: ...

class HoldSessionResponse(_message.Message):
    __slots__ = ("lease_id", "ttl_s", "tokens")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    ttl_s: float
    tokens: int
    def __init__(self, lease_id: _Optional[int] = ..., ttl_s: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...
