from radixloop.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventPosition(_message.Message):
    __slots__ = ("incarnation", "sequence")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    sequence: int
    def __init__(self, incarnation: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("after", "heartbeat_s")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    after: EventPosition
    heartbeat_s: float
    def __init__(self, after: _Optional[_Union[EventPosition, _Mapping]] = ..., heartbeat_s: _Optional[float] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("incarnation", "sequence", "timestamp", "events", "snapshot")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    sequence: int
    timestamp: float
    events: _containers.RepeatedCompositeFieldContainer[CacheEvent]
    snapshot: SnapshotPiece
    def __init__(self, incarnation: _Optional[str] = ..., sequence: _Optional[int] = ..., timestamp: _Optional[float] = ..., events: _Optional[_Iterable[_Union[CacheEvent, _Mapping]]] = ..., snapshot: _Optional[_Union[SnapshotPiece, _Mapping]] = ...) -> None: ...

class SnapshotPiece(_message.Message):
    __slots__ = ("index", "last")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    index: int
    last: bool
    def __init__(self, index: _Optional[int] = ..., last: bool = ...) -> None: ...

class CacheEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: BlocksStored
    removed: BlocksRemoved
    cleared: BlocksCleared
    def __init__(self, stored: _Optional[_Union[BlocksStored, _Mapping]] = ..., removed: _Optional[_Union[BlocksRemoved, _Mapping]] = ..., cleared: _Optional[_Union[BlocksCleared, _Mapping]] = ...) -> None: ...

class BlocksStored(_message.Message):
    __slots__ = ("namespace", "block_hashes", "parent_hash", "token_ids", "block_size", "medium")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.Namespace
    block_hashes: _containers.RepeatedScalarFieldContainer[int]
    parent_hash: int
    token_ids: _common_pb2.TokenIds
    block_size: int
    medium: str
    def __init__(self, namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., block_hashes: _Optional[_Iterable[int]] = ..., parent_hash: _Optional[int] = ..., token_ids: _Optional[_Union[_common_pb2.TokenIds, _Mapping]] = ..., block_size: _Optional[int] = ..., medium: _Optional[str] = ...) -> None: ...

class BlocksRemoved(_message.Message):
    __slots__ = ("namespace", "block_hashes", "medium")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.Namespace
    block_hashes: _containers.RepeatedScalarFieldContainer[int]
    medium: str
    def __init__(self, namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., block_hashes: _Optional[_Iterable[int]] = ..., medium: _Optional[str] = ...) -> None: ...

class BlocksCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
