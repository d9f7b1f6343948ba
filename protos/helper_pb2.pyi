from protos import report_pb2 as _report_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("name", "version", "verify_key", "agreement_key", "key_list", "numerics_digest", "tasks", "datasets", "open_jobs", "rounds_answered", "protocols", "not_well")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERIFY_KEY_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_LIST_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    OPEN_JOBS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    NOT_WELL_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    verify_key: bytes
    agreement_key: bytes
    key_list: bytes
    numerics_digest: bytes
    tasks: int
    datasets: int
    open_jobs: int
    rounds_answered: int
    protocols: _containers.RepeatedScalarFieldContainer[int]
    not_well: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., verify_key: _Optional[bytes] = ..., agreement_key: _Optional[bytes] = ..., key_list: _Optional[bytes] = ..., numerics_digest: _Optional[bytes] = ..., tasks: _Optional[int] = ..., datasets: _Optional[int] = ..., open_jobs: _Optional[int] = ..., rounds_answered: _Optional[int] = ..., protocols: _Optional[_Iterable[int]] = ..., not_well: _Optional[str] = ...) -> None: ...

class RegisterTaskRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: bytes
    def __init__(self, task: _Optional[bytes] = ...) -> None: ...

class RegisterTaskReply(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class HelperShare(_message.Message):
    __slots__ = ("report_id", "time_bucket", "share")
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_BUCKET_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    report_id: bytes
    time_bucket: int
    share: _report_pb2.SealedShare
    def __init__(self, report_id: _Optional[bytes] = ..., time_bucket: _Optional[int] = ..., share: _Optional[_Union[_report_pb2.SealedShare, _Mapping]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("header", "chunk", "end")
    class Header(_message.Message):
        __slots__ = ("task_id", "handle", "update_round")
        TASK_ID_FIELD_NUMBER: _ClassVar[int]
        HANDLE_FIELD_NUMBER: _ClassVar[int]
        UPDATE_ROUND_FIELD_NUMBER: _ClassVar[int]
        task_id: bytes
        handle: bytes
        update_round: bytes
        def __init__(self, task_id: _Optional[bytes] = ..., handle: _Optional[bytes] = ..., update_round: _Optional[bytes] = ...) -> None: ...
    class Chunk(_message.Message):
        __slots__ = ("shares",)
        SHARES_FIELD_NUMBER: _ClassVar[int]
        shares: _containers.RepeatedCompositeFieldContainer[HelperShare]
        def __init__(self, shares: _Optional[_Iterable[_Union[HelperShare, _Mapping]]] = ...) -> None: ...
    class End(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: PrepareRequest.Header
    chunk: PrepareRequest.Chunk
    end: PrepareRequest.End
    def __init__(self, header: _Optional[_Union[PrepareRequest.Header, _Mapping]] = ..., chunk: _Optional[_Union[PrepareRequest.Chunk, _Mapping]] = ..., end: _Optional[_Union[PrepareRequest.End, _Mapping]] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("is_admitted", "view_tags", "totals")
    class Totals(_message.Message):
        __slots__ = ("received", "admitted", "admitted_digest", "dropped")
        class DroppedEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: int
            def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
        RECEIVED_FIELD_NUMBER: _ClassVar[int]
        ADMITTED_FIELD_NUMBER: _ClassVar[int]
        ADMITTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
        DROPPED_FIELD_NUMBER: _ClassVar[int]
        received: int
        admitted: int
        admitted_digest: bytes
        dropped: _containers.ScalarMap[str, int]
        def __init__(self, received: _Optional[int] = ..., admitted: _Optional[int] = ..., admitted_digest: _Optional[bytes] = ..., dropped: _Optional[_Mapping[str, int]] = ...) -> None: ...
    IS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    VIEW_TAGS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    is_admitted: bytes
    view_tags: bytes
    totals: PrepareReply.Totals
    def __init__(self, is_admitted: _Optional[bytes] = ..., view_tags: _Optional[bytes] = ..., totals: _Optional[_Union[PrepareReply.Totals, _Mapping]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("task_id", "handle", "chosen", "dataset_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: bytes
    handle: bytes
    chosen: bytes
    dataset_id: bytes
    def __init__(self, task_id: _Optional[bytes] = ..., handle: _Optional[bytes] = ..., chosen: _Optional[bytes] = ..., dataset_id: _Optional[bytes] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("dataset_id", "size")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    dataset_id: bytes
    size: int
    def __init__(self, dataset_id: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class StartJobRequest(_message.Message):
    __slots__ = ("job", "model")
    JOB_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    job: bytes
    model: bytes
    def __init__(self, job: _Optional[bytes] = ..., model: _Optional[bytes] = ...) -> None: ...

class StartJobReply(_message.Message):
    __slots__ = ("path", "reason", "numerics_digest", "num_parameters", "epsilon_spent", "collusion_epsilon_spent", "rounds_answered")
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    COLLUSION_EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    path: str
    reason: str
    numerics_digest: bytes
    num_parameters: int
    epsilon_spent: float
    collusion_epsilon_spent: float
    rounds_answered: int
    def __init__(self, path: _Optional[str] = ..., reason: _Optional[str] = ..., numerics_digest: _Optional[bytes] = ..., num_parameters: _Optional[int] = ..., epsilon_spent: _Optional[float] = ..., collusion_epsilon_spent: _Optional[float] = ..., rounds_answered: _Optional[int] = ...) -> None: ...

class RoundRequest(_message.Message):
    __slots__ = ("header", "weights")
    class Header(_message.Message):
        __slots__ = ("task_id", "job_id", "round")
        TASK_ID_FIELD_NUMBER: _ClassVar[int]
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        ROUND_FIELD_NUMBER: _ClassVar[int]
        task_id: bytes
        job_id: bytes
        round: int
        def __init__(self, task_id: _Optional[bytes] = ..., job_id: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    header: RoundRequest.Header
    weights: bytes
    def __init__(self, header: _Optional[_Union[RoundRequest.Header, _Mapping]] = ..., weights: _Optional[bytes] = ...) -> None: ...

class RoundReply(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class CloseJobRequest(_message.Message):
    __slots__ = ("job", "task_id", "job_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job: bytes
    task_id: bytes
    job_id: bytes
    def __init__(self, job: _Optional[bytes] = ..., task_id: _Optional[bytes] = ..., job_id: _Optional[bytes] = ...) -> None: ...

class CloseJobReply(_message.Message):
    __slots__ = ("rounds_answered",)
    ROUNDS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    rounds_answered: int
    def __init__(self, rounds_answered: _Optional[int] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("query", "discovery", "codes", "evaluation", "model", "update")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    query: bytes
    discovery: bytes
    codes: bytes
    evaluation: bytes
    model: bytes
    update: bytes
    def __init__(self, query: _Optional[bytes] = ..., discovery: _Optional[bytes] = ..., codes: _Optional[bytes] = ..., evaluation: _Optional[bytes] = ..., model: _Optional[bytes] = ..., update: _Optional[bytes] = ...) -> None: ...

class StatementsRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: bytes
    def __init__(self, task_id: _Optional[bytes] = ...) -> None: ...

class StatementsReply(_message.Message):
    __slots__ = ("statement",)
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    def __init__(self, statement: _Optional[bytes] = ...) -> None: ...

class QueryReply(_message.Message):
    __slots__ = ("spent", "chunk")
    class Spent(_message.Message):
        __slots__ = ("epsilon", "collusion_epsilon")
        EPSILON_FIELD_NUMBER: _ClassVar[int]
        COLLUSION_EPSILON_FIELD_NUMBER: _ClassVar[int]
        epsilon: float
        collusion_epsilon: float
        def __init__(self, epsilon: _Optional[float] = ..., collusion_epsilon: _Optional[float] = ...) -> None: ...
    SPENT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    spent: QueryReply.Spent
    chunk: bytes
    def __init__(self, spent: _Optional[_Union[QueryReply.Spent, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...
