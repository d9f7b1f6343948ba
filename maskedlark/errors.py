"""Every error that one party can cause at another, as one small tree.

    MaskedLarkError
    ├── InvalidTask            our caller's task or one of its settings is wrong
    │   ├── InvalidSetting     a party's own options, files or folders are wrong: no task is
    │   └── UnsupportedVersion our caller speaks a version of the protocol that this software does not
    ├── InvalidModel(reason)   our caller's ONNX file, loss or weights are wrong
    ├── ReportRejected(reason) drop this one report, count it, go on
    ├── JobRefused(reason)     release nothing; the caller must change something before asking again
    └── HelperUnavailable      the peer did not answer: the only error that is worth retrying

Anything else is a bug: logged in full where it happened, and answered with INTERNAL and no detail.

Messages name the parameter, its value if that is public, and the remedy; never a label, a mask, a key or a
feature.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum, unique
from typing import Final, Generic, Self, TypeVar

from maskedlark.escape import escape


class Reason(StrEnum):
    """A stable code and what it means, for people and for docs/reference/errors.md."""

    meaning: str

    def __new__(cls, code: str, meaning: str = "") -> Self:
        """Create one member: its value is the code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


@unique
class ReportReason(Reason):
    """Why one report was dropped."""

    MALFORMED = "malformed", "the bytes are not a report: a field is missing or has the wrong size"
    WRONG_LENGTH = (
        "wrong_length",
        "a share is shorter or longer than any share of the task can be: truncated, padded, or "
        "with a different number of features",
    )
    WRONG_TASK = "wrong_task", "the report names another task, or a task unknown to the ad server"
    WRONG_VERSION = "wrong_version", "the share has a different protocol version"
    UNKNOWN_KEY = (
        "unknown_key",
        "the helper does not have, or no longer has, an HPKE key with this id: fetch the task bundle again",
    )
    NOT_OPENED = (
        "not_opened",
        "tampered with, sealed to another helper, or moved from another report, task or time; also "
        "reported to the ad server if the content is wrong",
    )
    LABEL_OUTSIDE_TASK = "label_outside_task", "a candidate label is not in the label space of the task"
    LABELS_REPEAT = "labels_repeat", "a candidate label occurs twice"
    DEFAULT_LABEL_MISSING = (
        "default_label_missing",
        "the default label of the task is not among the candidates",
    )
    KEY_OUTSIDE_TASK = "key_outside_task", "a key's code is not below the size that the task declares"
    MASK_NOT_CANONICAL = "mask_not_canonical", "a mask, value or proof element is not below the modulus"
    NOT_PROVEN = (
        "not_proven",
        "the two helpers' tags of the report differ: its proof is not valid, or its shares "
        "contradict each other",
    )
    OUTSIDE_TASK_PERIOD = (
        "outside_task_period",
        "the time bucket is before the task's start or after its end, or the task ended more than a day ago",
    )
    DUPLICATE_ID = "duplicate_id", "a report with this id is already stored; the first one counts"
    UNKNOWN_ROUND = "unknown_round", "the update belongs to no round that this ad server opened for the task"
    ROUND_OVER = "round_over", "the window of the update's round has ended"
    ROUND_CHANGED = (
        "round_changed",
        (
            "the device has already answered this round of the job with other weights or terms: it "
            "answers a round only once"
        ),
    )
    CAP_REACHED = (
        "cap_reached",
        (
            "the device has answered as many rounds as its cap allows, including rounds for which it was "
            "not drawn"
        ),
    )
    ALREADY_USED = "already_used", "the report is already in another dataset of the task"
    IMPLAUSIBLE = "implausible", "a returned model is too far from the instances that it was drawn from"


@unique
class ModelReason(Reason):
    """Why a model was not accepted."""

    NOT_ONNX = "not_onnx", "the bytes are not a valid ONNX graph"
    TOO_LARGE = "too_large", "over a limit on bytes, nodes, parameters or sizes"
    EXTERNAL_DATA = "external_data", "weights are in another file: export with external_data=False"
    UNKNOWN_OPERATOR = "unknown_operator", "an operator is not on the allow-list"
    UNSUPPORTED_ATTRIBUTE = (
        "unsupported_attribute",
        "an operator has an attribute or version that is not supported",
    )
    SUBGRAPH = "subgraph", "control flow (If, Loop, Scan) and model-local functions are not supported"
    WRONG_SHAPE = "wrong_shape", "the input, the output or a tensor does not fit the task or the operator"
    NOT_FINITE = "not_finite", "a weight is NaN or infinite"
    DIVERGED = "diverged", "a training step left the range of weights that a round can send"
    NOTHING_TO_TRAIN = "nothing_to_train", "no trainable tensor was found"
    WRONG_PARAMETERS = (
        "wrong_parameters",
        "the names of the parameters that a job trains do not fit the model",
    )
    MERGED_PARAMETERS = (
        "merged_parameters",
        "an exporter may have merged parameters that began with equal values",
    )
    UNKNOWN_LOSS = "unknown_loss", "the loss is unknown"
    WRONG_LOSS = "wrong_loss", "the loss does not fit the model output or the label space"


@unique
class JobReason(Reason):
    """Why a helper or the ad server refused to act, and released nothing."""

    UNKNOWN_TASK = "unknown_task", "this helper does not know the task: register it first"
    TASK_REFUSED = (
        "task_refused",
        "the task does not respect this operator's floors, or does not name this helper",
    )
    TASK_EXPIRED = "task_expired", "the task has expired"
    TOO_MANY_TASKS = "too_many_tasks", "the origin has reached the operator's limit of open tasks per origin"
    UNKNOWN_DATASET = (
        "unknown_dataset",
        "this helper does not know the dataset or preparation: prepare it again",
    )
    DATASET_LOST = (
        "dataset_lost",
        "the helper's file or objects of the dataset are missing or damaged: its operator must "
        "restore them, or another dataset must be sealed",
    )
    REPORTS_LOST = (
        "reports_lost",
        "an object with reports that wait to be sealed is missing from the ad server's bucket, or "
        "damaged: its operator must restore it",
    )
    DATASET_TOO_LARGE = "dataset_too_large", "more reports than the task allows in one dataset: seal several"
    QUOTA_EXCEEDED = (
        "quota_exceeded",
        "the ad server's datasets and preparations have reached the helper's limit of bytes per ad "
        "server (--max-held-bytes)",
    )
    DATASET_EMPTY = "dataset_empty", "no report was admitted by both helpers"
    DATASET_CHANGED = "dataset_changed", "the chosen reports do not have the expected dataset id"
    REPORT_ALREADY_USED = "report_already_used", "a chosen report is in another dataset of the task"
    MALFORMED = "malformed", "a message does not follow the wire contract"
    UNKNOWN_JOB = "unknown_job", "this helper does not know the job"
    JOB_CHANGED = "job_changed", "the id belongs to another job: use a new id for a new job"
    JOB_CLOSED = "job_closed", "the job is closed and its unused budget has been released: submit a new one"
    TOO_MANY_JOBS = (
        "too_many_jobs",
        "the dataset has reached the limit of jobs that a helper stores: seal another one",
    )
    WRONG_STATE = "wrong_state", "the job, dataset or report is in a state that does not allow this"
    ROUND_CHANGED = "round_changed", "the round was already answered for other weights"
    ROUND_OUT_OF_ORDER = "round_out_of_order", "an earlier round has not been requested yet"
    ROUND_BEYOND_PLAN = "round_beyond_plan", "the round is beyond the job's planned rounds"
    ROUND_CLOSED = "round_closed", "the answer was dropped after the job moved on"
    UNKNOWN_QUERY = "unknown_query", "no query with this id has been made"
    UNDECLARED = "undeclared", "the measurement of the task declares no such value, histogram or key"
    NOTHING_FOUND = "nothing_found", "no code of a key occurs in enough reports to be shown"
    QUERY_AFTER_DISCOVERY = (
        "query_after_discovery",
        "a discovery was charged and answered, and the query that it was made for was refused",
    )
    DOMAIN_TOO_LARGE = (
        "domain_too_large",
        "the query has more cells than a helper answers: use fewer keys, codes or values",
    )
    QUERY_CHANGED = (
        "query_changed",
        "the query with this id was charged with different content: values and levels that are "
        "released together are charged together",
    )
    OVERFLOW = (
        "overflow",
        "a sum could overflow the field: use fewer records, a smaller clip norm or fewer frac_bits",
    )
    NOISE_OUT_OF_RANGE = (
        "noise_out_of_range",
        "there is no noise although the task requires it, or more than the samplers support",
    )
    BUDGET_EXHAUSTED = (
        "budget_exhausted",
        "the privacy budget of the dataset, or of the task if its unit is a person, is too small: "
        "use fewer rounds, more noise, or another dataset or task",
    )
    HELPERS_DISAGREE = "helpers_disagree", "the helpers did not sum the same values; the sum was discarded"
    SUM_OUT_OF_RANGE = (
        "sum_out_of_range",
        "honest reports cannot give this sum: a report in the dataset has forbidden masks or "
        "values; the sum was discarded",
    )
    UNAUTHORIZED = (
        "unauthorized",
        "the caller's certificate does not name the origin of the task, or its token is unknown or has too "
        "small a scope",
    )
    TOO_LARGE = "too_large", "a message or model is over its size limit"
    LEDGER_ROLLED_BACK = (
        "ledger_rolled_back",
        "the helper's ledger is older than its earlier answers: its operator must restore the "
        "newest one, or make new keys",
    )
    CANCELLED = "cancelled", "the caller cancelled the call"
    BAD_ANSWER = "bad_answer", "the peer's answer does not follow the wire contract"
    PEER_FAILED = (
        "peer_failed",
        "the peer had an internal error, which a retry would repeat: its operator must read its log",
    )


_R = TypeVar("_R", bound=Reason)


class MaskedLarkError(Exception):
    """Base of everything that one party can cause at another.

    Its message is one line without control characters, whatever a remote party put into it.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(escape(message))


class InvalidTask(MaskedLarkError):
    """A task, a label space or a published key is wrong."""


class InvalidSetting(InvalidTask):
    """An option of a party, or one of its files of keys, certificates or data, is wrong."""


class UnsupportedVersion(InvalidTask):
    """An object or a peer is of a version that this software does not implement.

    The message names both versions, and the party to upgrade.
    """


class _Refusal(MaskedLarkError, Generic[_R]):
    """Refused for one of an enum of reasons."""

    def __init__(self, reason: _R, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[_R, str]]:
        """Let another process of one's own raise it here."""
        # Pickle would make an exception anew of its message alone, without the reason.
        return type(self), (self.reason, str(self))


class InvalidModel(_Refusal[ModelReason]):
    """A model, its loss or its weights are not acceptable."""


class ReportRejected(_Refusal[ReportReason]):
    """One report is dropped and counted; the others go on."""


class JobRefused(_Refusal[JobReason]):
    """Nothing was released; asking again with the same content gives the same answer."""


class HelperUnavailable(MaskedLarkError):
    """The peer did not answer in time.

    The same request may be sent again, at the earliest after `retry_after_s` if it says so.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


REFUSALS: Final[Mapping[str, Callable[[str, str], MaskedLarkError]]] = {
    "InvalidTask": lambda _, message: InvalidTask(message),
    "InvalidSetting": lambda _, message: InvalidSetting(message),
    "UnsupportedVersion": lambda _, message: UnsupportedVersion(message),
    "InvalidModel": lambda reason, message: InvalidModel(ModelReason(reason), message),
    "ReportRejected": lambda reason, message: ReportRejected(ReportReason(reason), message),
    "JobRefused": lambda reason, message: JobRefused(JobReason(reason), message),
}
"""The final errors by the names of their classes: each is built of its reason's code and a message.

ValueError if this version has no such reason.
"""
