"""A query put to both helpers at once, each until it answers; one that both refuse was charged by neither, and is forgotten."""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from threading import Event
from typing import Final, NamedTuple, Protocol

from adserver.helper_replies import QueryAnswer
from adserver.retrying import Backoff, with_retries
from maskedlark.accounting import Epsilons
from maskedlark.error_contract import INVALID_TASK, Charged, contract
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused
from maskedlark.field import SignedVector
from maskedlark.round import combine

_REFUSAL_S: Final = 2.0
"""What the second helper is given to refuse as the first did: a query is forgotten only if both say no."""


class BothAnswers(NamedTuple):
    """The sum of both helpers' shares, and what the dataset has spent by the ledger that holds more."""

    total: SignedVector
    dataset_spent: Epsilons


class Forgetful(Protocol):
    """What remembers queries; `adserver.queries.QueryStore` does."""

    def remove(self, query_id: bytes) -> None:
        """Forget a query that was not charged."""


class Question(Protocol):
    """One helper's part of a query."""

    def __call__(self, *, cancelled: Event | None) -> QueryAnswer:
        """The helper's answer, the same however often it is asked; ends early when `cancelled` is set."""


def ask_both(calls: Sequence[Question], backoff: Backoff, *, store: Forgetful, query_id: bytes) -> BothAnswers:
    """Both helpers' answers, added. If one helper fails, the other is waited for only as long as a refusal takes.

    Raises:
        HelperUnavailable: a helper did not answer before the backoff gave up; it may have charged the query, so it stays remembered.
        MaskedLarkError: what a helper refused with.
        JobRefused(HELPERS_DISAGREE)
    """
    cancelled = Event()
    with ThreadPoolExecutor(len(calls), thread_name_prefix="query") as pool:
        asked = [pool.submit(with_retries, partial(call, cancelled=cancelled), backoff, cancelled=cancelled) for call in calls]
        try:
            done, pending = wait(asked, return_when=FIRST_EXCEPTION)
            wait(pending, timeout=_REFUSAL_S)
        finally:  # also when a person interrupts the wait
            cancelled.set()
    if all(_is_refusal(one.exception()) for one in asked):
        store.remove(query_id)
    for one in (*done, *asked):  # what came first is the cause; the other may only have been cancelled for it
        one.result()
    first, second = (one.result() for one in asked)
    worst = Epsilons(
        ad_server=max(first.dataset_spent.ad_server, second.dataset_spent.ad_server),
        colluding=max(first.dataset_spent.colluding, second.dataset_spent.colluding),
    )
    return BothAnswers(combine(first.share, second.share), worst)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether a helper surely has not charged: it was heard, and refused for a reason that costs nothing."""
    match error:
        case InvalidTask():
            return INVALID_TASK.charged is Charged.NO
        case InvalidModel() | JobRefused():
            return contract(error.reason).charged is Charged.NO
        case _:
            return False
