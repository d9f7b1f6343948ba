"""What each stable code means for the one who gets it.

Whether to ask again, whether budget was charged, and what to do.

`maskedlark.errors` says what happened; this says what follows. docs/reference/errors.md is written from both.
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
        remedy: What to do, and who does it where that is not the caller.
    """

    is_retryable: bool = False
    charged: Charged = Charged.NO
    remedy: str


UNAVAILABLE: Final = Contract(
    is_retryable=True,
    charged=Charged.ONCE,
    remedy="ask again with backoff and jitter, not before the hint in the answer if there is one",
)
"""Of HelperUnavailable, which has no reasons."""

INVALID_TASK: Final = Contract(remedy="correct the setting that the message names, and make the task anew")
"""Of InvalidTask, which has no reasons."""

_REPORTS: Final = {
    ReportReason.MALFORMED: "the browser is of another version or the way is broken: fix the sender",
    ReportReason.WRONG_LENGTH: "seal with the bundle of the very task",
    ReportReason.WRONG_TASK: "fetch the task bundle from this ad server",
    ReportReason.WRONG_VERSION: "update the browser",
    ReportReason.UNKNOWN_KEY: (
        "fetch the task bundle again and seal anew; operators: rotate with a longer overlap"
    ),
    ReportReason.NOT_OPENED: "nothing: the report is lost; many of them mean a broken or hostile sender",
    ReportReason.LABEL_OUTSIDE_TASK: "nothing: the report is lost; fix the sender",
    ReportReason.KEY_OUTSIDE_TASK: "nothing: the report is lost; fix the sender",
    ReportReason.LABELS_REPEAT: "nothing: the report is lost; fix the sender",
    ReportReason.DEFAULT_LABEL_MISSING: "nothing: the report is lost; fix the sender",
    ReportReason.MASK_NOT_CANONICAL: "nothing: the report is lost; fix the sender",
    ReportReason.NOT_PROVEN: "nothing: the report is lost; many of them mean a broken or hostile sender",
    ReportReason.OUTSIDE_TASK_PERIOD: "set the clock, or fetch the bundle of the task that is open now",
    ReportReason.DUPLICATE_ID: "nothing: the report is stored",
    ReportReason.UNKNOWN_ROUND: "fetch the round that is open, and answer that one",
    ReportReason.ROUND_OVER: "nothing: the update came too late; answer the next round",
    ReportReason.ROUND_CHANGED: "nothing: another answer would void what the first one hides",
    ReportReason.CAP_REACHED: "nothing: the device takes no part any more; raise its cap if its owner agrees",
    ReportReason.ALREADY_USED: "nothing: the report counts in the dataset that has it",
    ReportReason.IMPLAUSIBLE: "draw again: an honest update is refused once in a hundred times",
}
_MODELS: Final = {
    ModelReason.NOT_ONNX: "export the model again",
    ModelReason.TOO_LARGE: "use a smaller model",
    ModelReason.EXTERNAL_DATA: "export with the weights inside the file",
    ModelReason.UNKNOWN_OPERATOR: "replace the operator that the message names by ones of the list",
    ModelReason.UNSUPPORTED_ATTRIBUTE: "export with another operator set, or without the attribute",
    ModelReason.SUBGRAPH: "unroll control flow, and inline functions, before the export",
    ModelReason.WRONG_SHAPE: "make input and output fit the task's features and labels",
    ModelReason.NOT_FINITE: "repair the model's weights",
    ModelReason.DIVERGED: "submit a new job with a lower learning rate",
    ModelReason.NOTHING_TO_TRAIN: "export the weights as initializers",
    ModelReason.UNKNOWN_LOSS: "choose a loss of the list",
    ModelReason.WRONG_LOSS: "choose a loss that fits the output and the labels",
}
_JOBS: Final = {
    JobReason.UNKNOWN_TASK: "register the task with this helper, under the certificate of its origin",
    JobReason.TASK_REFUSED: "ask for what the operator's floors allow, or talk to the operator",
    JobReason.TASK_EXPIRED: "make a new task",
    JobReason.TOO_MANY_TASKS: "let tasks expire, or talk to the operator",
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
        "commit what is prepared, wait until datasets of expired tasks are deleted, or ask the helper's "
        "operator for more"
    ),
    JobReason.DATASET_EMPTY: "see why reports are dropped (`adserver dataset list --json`), and collect more",
    JobReason.DATASET_CHANGED: "prepare the dataset again at both helpers",
    JobReason.REPORT_ALREADY_USED: "prepare again: used reports are dropped",
    JobReason.MALFORMED: "update one of the two sides: they speak different versions",
    JobReason.UNKNOWN_JOB: "start the job before its rounds",
    JobReason.JOB_CHANGED: "take a new id for a new job",
    JobReason.JOB_CLOSED: "submit a new job",
    JobReason.TOO_MANY_JOBS: "seal another dataset",
    JobReason.WRONG_STATE: "look at the state, and choose an event that it allows",
    JobReason.ROUND_CHANGED: "ask with the weights of the first time: they get the same answer",
    JobReason.ROUND_OUT_OF_ORDER: "ask for the rounds before it first",
    JobReason.ROUND_BEYOND_PLAN: "submit a longer job",
    JobReason.ROUND_CLOSED: "go on with the job's next round",
    JobReason.UNKNOWN_QUERY: "ask the query before its answer is fetched",
    JobReason.UNDECLARED: "ask for what the task's measurement declares, or make a new task",
    JobReason.NOTHING_FOUND: "give the key's domain, or ask over more reports",
    JobReason.DOMAIN_TOO_LARGE: "ask for fewer keys, codes or values",
    JobReason.QUERY_CHANGED: "ask as the first time, or take a new id and pay for it",
    JobReason.OVERFLOW: "fewer records, a smaller clip norm, or fewer frac_bits",
    JobReason.NOISE_OUT_OF_RANGE: "choose a noise within the limits that the message names",
    JobReason.BUDGET_EXHAUSTED: "fewer rounds, more noise, or another dataset (with unit user: another task)",
    JobReason.HELPERS_DISAGREE: (
        "operators: compare versions and numerics (`helper status`); then resume, with a new round"
    ),
    JobReason.SUM_OUT_OF_RANGE: "seal another dataset: one report in this one lies",
    JobReason.UNAUTHORIZED: "use the certificate of the task's origin, and have the operator trust it",
    JobReason.TOO_LARGE: "send less: the message names the limit",
    JobReason.LEDGER_ROLLED_BACK: (
        "the helper's operator brings back the newest ledger, or makes new keys and tasks"
    ),
    JobReason.CANCELLED: "nothing, or ask again",
    JobReason.BAD_ANSWER: (
        "update one of the two sides: they speak different versions; then ask for the same again"
    ),
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
    is_retryable = reason is JobReason.CANCELLED
    return Contract(is_retryable=is_retryable, charged=charged, remedy=_REMEDIES[type(reason)][reason])
