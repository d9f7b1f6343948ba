import pickle

import pytest

from maskedlark.error_contract import INVALID_TASK, UNAVAILABLE, Charged, contract
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
    Reason,
    ReportReason,
)


@pytest.mark.parametrize(
    "reason",
    [*ReportReason, *ModelReason, *JobReason],
    ids=lambda reason: f"{type(reason).__name__}-{reason.value}",
)
def test_every_reason_says_what_to_do(reason: Reason) -> None:
    assert len(contract(reason).remedy) > 10


def test_only_what_did_not_arrive_is_worth_asking_again_as_it_is() -> None:
    assert [
        reason for reason in (*ReportReason, *ModelReason, *JobReason) if contract(reason).is_retryable
    ] == [JobReason.CANCELLED]
    assert UNAVAILABLE.is_retryable
    assert not INVALID_TASK.is_retryable


def test_a_refusal_charges_nothing_unless_it_came_after_an_answer() -> None:
    assert contract(JobReason.BUDGET_EXHAUSTED).charged is Charged.NO
    assert contract(JobReason.ROUND_CHANGED).charged is Charged.BEFORE
    assert contract(JobReason.HELPERS_DISAGREE).charged is Charged.YES
    assert contract(JobReason.NOTHING_FOUND).charged is contract(ModelReason.DIVERGED).charged is Charged.YES
    assert contract(JobReason.BAD_ANSWER).charged is UNAVAILABLE.charged is Charged.ONCE
    assert contract(JobReason.MALFORMED).charged is contract(ModelReason.NOT_FINITE).charged is Charged.NO


def test_equal_words_of_two_kinds_are_two_reasons() -> None:
    assert contract(ModelReason.TOO_LARGE) != contract(JobReason.TOO_LARGE)
    assert contract(ReportReason.MALFORMED) != contract(JobReason.MALFORMED)


@pytest.mark.parametrize(
    "error",
    [
        InvalidModel(ModelReason.NOT_ONNX, "no graph"),
        JobRefused(JobReason.MALFORMED, "no round"),
        HelperUnavailable("no answer", retry_after_s=2.0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_another_process_arrives_whole(error: MaskedLarkError) -> None:
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 # our own bytes
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
