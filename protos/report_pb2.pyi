from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SealedShare(_message.Message):
    __slots__ = ("key_id", "ciphertext")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    key_id: int
    ciphertext: bytes
    def __init__(self, key_id: _Optional[int] = ..., ciphertext: _Optional[bytes] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("task_id", "report_id", "time_bucket", "share_0", "share_1", "round_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_BUCKET_FIELD_NUMBER: _ClassVar[int]
    SHARE_0_FIELD_NUMBER: _ClassVar[int]
    SHARE_1_FIELD_NUMBER: _ClassVar[int]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: bytes
    report_id: bytes
    time_bucket: int
    share_0: SealedShare
    share_1: SealedShare
    round_id: bytes
    def __init__(self, task_id: _Optional[bytes] = ..., report_id: _Optional[bytes] = ..., time_bucket: _Optional[int] = ..., share_0: _Optional[_Union[SealedShare, _Mapping]] = ..., share_1: _Optional[_Union[SealedShare, _Mapping]] = ..., round_id: _Optional[bytes] = ...) -> None: ...

class ReportBatch(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...
