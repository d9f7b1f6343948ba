"""A query at two helpers: together, and no longer than it makes sense."""

from threading import Event

import numpy as np
import pytest

from adserver.peers import query_both
from adserver.peers.query_both import ask_both
from adserver.peers.replies import QueryAnswer
from adserver.peers.retrying import Backoff
from adserver.records.asked_query import StoredAnswer
from maskedlark.error_contract import Charged, contract
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
)
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.release import AggregateShare
from tests.patience import HANGS_S

_BACKOFF = Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=0.1)
_PATIENT = Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=HANGS_S)
_REFUSED = JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing is left")


class Book:
    """Whether the query was forgotten."""

    def __init__(self) -> None:
        self.is_forgotten = False

    def forget(self) -> None:
        self.is_forgotten = True


def ask(
    calls: list[query_both._Question], book: Book, *, is_new: bool = True, backoff: Backoff = _BACKOFF
) -> StoredAnswer:
    return ask_both(calls, backoff, forget=book.forget, is_new=is_new)


def _answer(spent: float) -> QueryAnswer:
    share = AggregateShare(vector=np.array([1, 2], np.uint64), agreement_tag=bytes(32))
    return QueryAnswer(share=share, dataset_spent=Epsilons(ad_server=spent, colluding=2 * spent))


class Answers:
    """Answers at once."""

    def __init__(self, spent: float = 1.0) -> None:
        self.spent = spent

    def __call__(self, *, cancelled: Event | None) -> QueryAnswer:
        return _answer(self.spent)


class Fails:
    """Fails at once, always."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *, cancelled: Event | None) -> QueryAnswer:
        raise self.error


class FailsFirst:
    """Fails with one error at first, and then with another."""

    def __init__(self, first: Exception, later: Exception) -> None:
        self.errors = [first]
        self.later = later
        self.times = 0

    def __call__(self, *, cancelled: Event | None) -> QueryAnswer:
        self.times += 1
        raise self.errors.pop() if self.errors else self.later


class Computes:
    """Computes until it is cancelled, as `HelperClient` ends a call."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def __call__(self, *, cancelled: Event | None) -> QueryAnswer:
        assert cancelled is not None
        self.is_cancelled = cancelled.wait(HANGS_S)
        raise JobRefused(JobReason.CANCELLED, "the call was cancelled")


def test_the_shares_are_added_and_the_worse_ledger_is_told() -> None:
    both = ask([Answers(1.0), Answers(3.0)], Book())
    assert both.total.tolist() == [2, 4]
    assert both.dataset_spent == Epsilons(ad_server=3.0, colluding=6.0)


@pytest.mark.parametrize("error", [_REFUSED, HelperUnavailable("down")], ids=["refused", "down"])
def test_when_one_helper_fails_the_others_work_is_ended_and_the_query_remembered(
    error: MaskedLarkError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_both, "_REFUSAL_S", 0.1)
    for place in (0, 1):
        computing, book = Computes(), Book()
        calls: list[query_both._Question] = [computing, computing]
        calls[place] = Fails(error)
        with pytest.raises(type(error), match=str(error)):
            ask(calls, book)
        assert computing.is_cancelled
        assert not book.is_forgotten  # it may have been charged in the moment before


def test_a_query_that_both_refuse_is_forgotten() -> None:
    book = Book()
    with pytest.raises(JobRefused, match="nothing is left"):
        ask([Fails(_REFUSED), Fails(_REFUSED)], book)
    assert book.is_forgotten


@pytest.mark.parametrize("other", [Answers(), Fails(HelperUnavailable("down"))], ids=["answered", "unheard"])
def test_a_query_that_one_refuses_is_remembered(
    other: query_both._Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_both, "_REFUSAL_S", 0.1)
    book = Book()
    with pytest.raises(JobRefused, match="nothing is left"):
        ask([other, Fails(_REFUSED)], book, backoff=_PATIENT)
    assert not book.is_forgotten


@pytest.mark.parametrize(
    "reason",
    [
        JobReason.PEER_FAILED,
        JobReason.BAD_ANSWER,
        JobReason.CANCELLED,
        JobReason.QUERY_CHANGED,
        JobReason.JOB_CLOSED,
    ],
)
def test_a_query_that_may_have_been_charged_is_remembered_whatever_both_helpers_say(
    reason: JobReason,
) -> None:
    book, failing = Book(), Fails(JobRefused(reason, "said by both"))
    with pytest.raises(JobRefused, match="said by both"):
        ask([failing, failing], book)
    assert not book.is_forgotten


def test_after_a_bug_a_query_is_remembered() -> None:
    book = Book()
    with pytest.raises((ZeroDivisionError, JobRefused)):  # whichever call ended first
        ask([Fails(ZeroDivisionError()), Fails(_REFUSED)], book)
    assert not book.is_forgotten


_CHEAP = [InvalidTask("no query"), InvalidModel(ModelReason.UNKNOWN_OPERATOR, "no exact form")] + [
    JobRefused(reason, "no") for reason in JobReason if contract(reason).charged is Charged.NO
]


@pytest.mark.parametrize("error", _CHEAP, ids=lambda error: str(getattr(error, "reason", "invalid_task")))
def test_a_new_query_is_forgotten_if_both_refuse_it_for_what_costs_nothing(error: MaskedLarkError) -> None:
    book = Book()
    with pytest.raises(type(error)):
        ask([Fails(error), Fails(error)], book)
    assert book.is_forgotten


@pytest.mark.parametrize("error", _CHEAP, ids=lambda error: str(getattr(error, "reason", "invalid_task")))
def test_a_query_that_was_asked_before_is_forgotten_only_if_there_was_no_budget_for_it(
    error: MaskedLarkError,
) -> None:
    """A helper looks for the stored answer before it looks at the budget, and after everything else."""
    book = Book()
    with pytest.raises(type(error)):
        ask([Fails(error), Fails(error)], book, is_new=False)
    assert book.is_forgotten == (isinstance(error, JobRefused) and error.reason is JobReason.BUDGET_EXHAUSTED)


def test_a_new_query_whose_answer_may_have_been_lost_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_both, "_REFUSAL_S", HANGS_S)
    unauthorized, book = JobRefused(JobReason.UNAUTHORIZED, "no longer"), Book()
    lost = FailsFirst(HelperUnavailable("the answer was lost"), unauthorized)
    with pytest.raises(JobRefused, match="no longer"):
        ask([Fails(unauthorized), lost], book, backoff=_PATIENT)
    assert lost.times == 2
    assert not book.is_forgotten
