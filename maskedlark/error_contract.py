"""The contract of each stable error code: whether to retry, whether budget was charged, and what to do.

`maskedlark.errors` defines the codes and their meaning. docs/reference/errors.md is written from both.
"""

from enum import StrEnum, unique
from typing import Any, Final

from maskedlark.errors import JobReason, ModelReason, Reason, ReportReason
from maskedlark.frozen import frozen


@unique
class Charged(StrEnum):
    """What an error has cost of a dataset's privacy budget."""

    NO = "no"
    BEFORE = "by the first answer"
    """This request cost nothing; what was answered before stays charged."""
    YES = "yes"
    """Both helpers answered and charged; what they answered was of no use."""
    ONCE = "at most once"
    """It may have been answered, and so charged, without the answer arriving.

    Asking again gets that answer and costs nothing.
    """


@frozen
class Contract:
    """What follows from an error.

    Attributes:
        is_retryable: Whether the same request, sent again later, may succeed.
        charged: What it cost.
        remedy: What to do; it names the party that does it, unless that is the caller.
    """

    is_retryable: bool = False
    charged: Charged = Charged.NO
    remedy: str


UNAVAILABLE: Final = Contract(
    is_retryable=True,
    charged=Charged.ONCE,
    remedy="retry with backoff and jitter, not before the time in the answer if it contains one",
)
"""Of HelperUnavailable, which has no reasons."""

INVALID_TASK: Final = Contract(remedy="correct the setting that the message names, and create the task again")
"""Of InvalidTask, which has no reasons."""

INVALID_SETTING: Final = Contract(
    remedy="the operator corrects the option or file that the message names, and runs the command again"
)
"""Of InvalidSetting, which has no reasons."""

UNSUPPORTED_VERSION: Final = Contract(remedy="upgrade the party that the message names")
"""Of UnsupportedVersion, which has no reasons."""

_REPORTS: Final = {
    ReportReason.MALFORMED: "the browser has a different version, or the transport is broken: fix the sender",
    ReportReason.WRONG_LENGTH: "seal with the bundle of exactly this task",
    ReportReason.WRONG_TASK: "fetch the task bundle from this ad server",
    ReportReason.WRONG_VERSION: "update the browser",
    ReportReason.UNKNOWN_KEY: (
        "fetch the task bundle again and seal again; operators: rotate with a longer overlap"
    ),
    ReportReason.NOT_OPENED: "nothing: the report is lost; many of them mean a broken or hostile sender",
    ReportReason.LABEL_OUTSIDE_TASK: "nothing: the report is lost; fix the sender",
    ReportReason.KEY_OUTSIDE_TASK: "nothing: the report is lost; fix the sender",
    ReportReason.LABELS_REPEAT: "nothing: the report is lost; fix the sender",
    ReportReason.DEFAULT_LABEL_MISSING: "nothing: the report is lost; fix the sender",
    ReportReason.MASK_NOT_CANONICAL: "nothing: the report is lost; fix the sender",
    ReportReason.NOT_PROVEN: "nothing: the report is lost; many of them mean a broken or hostile sender",
    ReportReason.OUTSIDE_TASK_PERIOD: "correct the clock, or fetch the bundle of a task that is open now",
    ReportReason.DUPLICATE_ID: "nothing: the report is stored",
    ReportReason.UNKNOWN_ROUND: "fetch the open round, and answer that one",
    ReportReason.ROUND_OVER: "nothing: the update arrived too late; answer the next round",
    ReportReason.ROUND_CHANGED: "nothing: a second answer would reveal what the first one hides",
    ReportReason.CAP_REACHED: "nothing: the device no longer takes part; raise its cap if its owner agrees",
    ReportReason.ALREADY_USED: "nothing: the report counts in the dataset that already contains it",
    ReportReason.IMPLAUSIBLE: "draw again: about one in a hundred honest updates is rejected",
}
_MODELS: Final = {
    ModelReason.NOT_ONNX: "export the model again",
    ModelReason.TOO_LARGE: "use a smaller model",
    ModelReason.EXTERNAL_DATA: "export with the weights inside the file",
    ModelReason.UNKNOWN_OPERATOR: "replace the operator that the message names with operators from the list",
    ModelReason.UNSUPPORTED_ATTRIBUTE: "export with another operator set, or without the attribute",
    ModelReason.SUBGRAPH: "unroll control flow, and inline functions, before the export",
    ModelReason.WRONG_SHAPE: "change the input and output to fit the task's features and labels",
    ModelReason.NOT_FINITE: "repair the model's weights",
    ModelReason.DIVERGED: "submit a new job with a lower learning rate",
    ModelReason.NOTHING_TO_TRAIN: "export the weights as initializers",
    ModelReason.WRONG_PARAMETERS: "name parameters that `adserver model show` lists; leave one to train",
    ModelReason.MERGED_PARAMETERS: "export with torch's present exporter, or begin with values that differ",
    ModelReason.UNKNOWN_LOSS: "choose a loss from the list",
    ModelReason.WRONG_LOSS: "choose a loss that fits the output and the labels",
}
_JOBS: Final = {
    JobReason.UNKNOWN_TASK: "register the task with this helper, under the certificate of its origin",
    JobReason.TASK_REFUSED: "use settings that the operator's floors allow, or contact the operator",
    JobReason.TASK_EXPIRED: "create a new task",
    JobReason.TOO_MANY_TASKS: "wait until tasks expire, or contact the operator",
    JobReason.UNKNOWN_DATASET: "prepare and commit the dataset again",
    JobReason.DATASET_LOST: (
        "the helper's operator restores `datasets/` or the bucket from a backup, then `adserver job resume`; "
        "or seal another dataset"
    ),
    JobReason.REPORTS_LOST: (
        "the ad server's operator restores the object that the message names, under its name; then seal again"
    ),
    JobReason.DATASET_TOO_LARGE: "seal several datasets",
    JobReason.QUOTA_EXCEEDED: (
        "commit the prepared datasets, wait until datasets of expired tasks are deleted, or ask "
        "the helper's operator for a higher limit"
    ),
    JobReason.DATASET_EMPTY: "see why reports are dropped (`adserver dataset list --json`), and collect more",
    JobReason.DATASET_CHANGED: "prepare the dataset again at both helpers",
    JobReason.REPORT_ALREADY_USED: "prepare the dataset again: used reports are then dropped",
    JobReason.MALFORMED: "update one of the two sides: their versions differ",
    JobReason.UNKNOWN_JOB: "start the job before requesting its rounds",
    JobReason.JOB_CHANGED: "use a new id for a new job",
    JobReason.JOB_CLOSED: "submit a new job",
    JobReason.TOO_MANY_JOBS: "seal another dataset",
    JobReason.WRONG_STATE: "check the state, and use an operation that it allows",
    JobReason.ROUND_CHANGED: "repeat the request with the first request's weights: the answer is the same",
    JobReason.ROUND_OUT_OF_ORDER: "first request the earlier rounds",
    JobReason.ROUND_BEYOND_PLAN: "submit a longer job",
    JobReason.ROUND_CLOSED: "continue with the job's next round",
    JobReason.UNKNOWN_QUERY: "make the query before fetching its answer",
    JobReason.UNDECLARED: (
        "use only values, histograms and keys that the task's measurement declares, or create a new task"
    ),
    JobReason.NOTHING_FOUND: "give the key's domain, or query more reports",
    JobReason.QUERY_AFTER_DISCOVERY: "mend what the message names, and give a domain in place of a discovery",
    JobReason.DOMAIN_TOO_LARGE: "query fewer keys, codes or values",
    JobReason.QUERY_CHANGED: "repeat the first request, or use a new id, which is charged",
    JobReason.OVERFLOW: "use fewer records, a smaller clip norm, or fewer frac_bits",
    JobReason.NOISE_OUT_OF_RANGE: "choose a noise within the limits that the message names",
    JobReason.BUDGET_EXHAUSTED: "use fewer rounds, more noise, or another dataset (unit user: another task)",
    JobReason.HELPERS_DISAGREE: (
        "operators: compare `version` and `software_digest` (`lark-helper status`); "
        "then resume the job with a new round"
    ),
    JobReason.SUM_OUT_OF_RANGE: "seal another dataset: a report in this one is dishonest",
    JobReason.UNAUTHORIZED: (
        "use the certificate of the task's origin, and ask the operator to trust it; or a token of the scope "
        "that the message names"
    ),
    JobReason.TOO_LARGE: "send less: the message contains the limit",
    JobReason.LEDGER_ROLLED_BACK: (
        "the helper's operator restores the newest ledger, or makes new keys and tasks"
    ),
    JobReason.CANCELLED: "nothing, or repeat the request",
    JobReason.BAD_ANSWER: ("update one of the two sides: their versions differ; then repeat the request"),
    JobReason.PEER_FAILED: "the peer's operator reads its log; then resume",
}
_CHARGED: Final = {
    (ModelReason, ModelReason.DIVERGED): Charged.YES,
    (JobReason, JobReason.ROUND_CHANGED): Charged.BEFORE,
    (JobReason, JobReason.ROUND_CLOSED): Charged.BEFORE,
    (JobReason, JobReason.QUERY_CHANGED): Charged.BEFORE,
    (JobReason, JobReason.JOB_CLOSED): Charged.BEFORE,
    (JobReason, JobReason.HELPERS_DISAGREE): Charged.YES,
    (JobReason, JobReason.SUM_OUT_OF_RANGE): Charged.YES,
    (JobReason, JobReason.NOTHING_FOUND): Charged.YES,
    (JobReason, JobReason.QUERY_AFTER_DISCOVERY): Charged.YES,
    (JobReason, JobReason.CANCELLED): Charged.ONCE,
    (JobReason, JobReason.PEER_FAILED): Charged.ONCE,
    (JobReason, JobReason.BAD_ANSWER): Charged.ONCE,
}
_REMEDIES: Final[dict[type[Reason], dict[Any, str]]] = {
    ReportReason: _REPORTS,
    ModelReason: _MODELS,
    JobReason: _JOBS,
}


def contract(reason: Reason) -> Contract:
    """Return a reason's contract. A reason without an entry is a KeyError: a bug, which a test finds."""
    charged = _CHARGED.get((type(reason), reason), Charged.NO)
    # Only this reason says nothing about the request, which may succeed another time.
    is_retryable = reason is JobReason.CANCELLED
    return Contract(is_retryable=is_retryable, charged=charged, remedy=_REMEDIES[type(reason)][reason])
