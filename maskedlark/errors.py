"""Every error that one party can cause at another, as one small tree.

    MaskedLarkError
    ├── InvalidTask            our caller's task or key configuration is wrong
    ├── InvalidModel(reason)   our caller's ONNX file, loss or weights are wrong
    ├── ReportRejected(reason) drop this one report, count it, go on
    ├── JobRefused(reason)     release nothing; the caller must change something before asking again
    └── HelperUnavailable      the peer did not answer: the only error that is worth retrying

Anything else is a bug: logged in full where it happened, and answered with INTERNAL and no detail.

Messages name the parameter, its value if that is public, and the remedy; never a label, a mask, a key or a feature.
"""

from enum import StrEnum, unique


@unique
class ReportReason(StrEnum):
    """Why one report was dropped."""

    MALFORMED = "malformed"
    WRONG_LENGTH = "wrong_length"
    WRONG_TASK = "wrong_task"
    WRONG_VERSION = "wrong_version"
    UNKNOWN_KEY = "unknown_key"
    NOT_OPENED = "not_opened"
    LABEL_OUTSIDE_TASK = "label_outside_task"
    LABELS_REPEAT = "labels_repeat"
    DEFAULT_LABEL_MISSING = "default_label_missing"
    MASK_NOT_CANONICAL = "mask_not_canonical"
    OUTSIDE_TASK_PERIOD = "outside_task_period"
    DUPLICATE_ID = "duplicate_id"
    ALREADY_USED = "already_used"


@unique
class ModelReason(StrEnum):
    """Why a model was not accepted."""

    NOT_ONNX = "not_onnx"
    TOO_LARGE = "too_large"
    EXTERNAL_DATA = "external_data"
    UNKNOWN_OPERATOR = "unknown_operator"
    UNSUPPORTED_ATTRIBUTE = "unsupported_attribute"
    SUBGRAPH = "subgraph"
    WRONG_SHAPE = "wrong_shape"
    NOT_FINITE = "not_finite"
    NOTHING_TO_TRAIN = "nothing_to_train"
    UNKNOWN_LOSS = "unknown_loss"
    WRONG_LOSS = "wrong_loss"


@unique
class JobReason(StrEnum):
    """Why a helper or the ad server refused to act, and released nothing."""

    UNKNOWN_TASK = "unknown_task"
    TASK_REFUSED = "task_refused"
    TASK_EXPIRED = "task_expired"
    UNKNOWN_DATASET = "unknown_dataset"
    DATASET_TOO_LARGE = "dataset_too_large"
    DATASET_EMPTY = "dataset_empty"
    DATASET_CHANGED = "dataset_changed"
    REPORT_ALREADY_USED = "report_already_used"
    MALFORMED = "malformed"
    UNKNOWN_JOB = "unknown_job"
    JOB_CHANGED = "job_changed"
    JOB_CLOSED = "job_closed"
    WRONG_STATE = "wrong_state"
    ROUND_CHANGED = "round_changed"
    ROUND_OUT_OF_ORDER = "round_out_of_order"
    ROUND_BEYOND_PLAN = "round_beyond_plan"
    ROUND_CLOSED = "round_closed"
    OVERFLOW = "overflow"
    NOISE_OUT_OF_RANGE = "noise_out_of_range"
    BUDGET_EXHAUSTED = "budget_exhausted"
    HELPERS_DISAGREE = "helpers_disagree"
    UNAUTHORIZED = "unauthorized"
    TOO_LARGE = "too_large"
    CANCELLED = "cancelled"


class MaskedLarkError(Exception):
    """Base of everything that one party can cause at another."""


class InvalidTask(MaskedLarkError):
    """A task, a label space or a published key is wrong."""


class InvalidModel(MaskedLarkError):
    """A model, its loss or its weights are not acceptable."""

    def __init__(self, reason: ModelReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ReportRejected(MaskedLarkError):
    """One report is dropped and counted; the others go on."""

    def __init__(self, reason: ReportReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class JobRefused(MaskedLarkError):
    """Nothing was released; asking again with the same content gives the same answer."""

    def __init__(self, reason: JobReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class HelperUnavailable(MaskedLarkError):
    """The peer did not answer in time; the same request may be sent again."""
