"""A query put to both helpers at once, each until it answers; one that both refuse was charged by neither, and is forgotten."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from adserver.helper_replies import QueryAnswer
from adserver.retrying import Backoff, with_retries
from maskedlark.accounting import Epsilons
from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.field import SignedVector
from maskedlark.round import combine


class BothAnswers(NamedTuple):
    """The sum of both helpers' shares, and what the dataset has spent by the ledger that holds more."""

    total: SignedVector
    dataset_spent: Epsilons


class Forgetful(Protocol):
    """What remembers queries; `adserver.queries.QueryStore` does."""

    def remove(self, query_id: bytes) -> None:
        """Forget a query that was not charged."""


def ask_both(calls: Sequence[Callable[[], QueryAnswer]], backoff: Backoff, *, store: Forgetful, query_id: bytes) -> BothAnswers:
    """Both helpers' answers, added.

    Raises:
        HelperUnavailable: a helper did not answer before the backoff gave up; it may have charged the query, so it stays remembered.
        MaskedLarkError: what a helper refused with.
        JobRefused(HELPERS_DISAGREE)
    """
    with ThreadPoolExecutor(len(calls), thread_name_prefix="query") as pool:
        asked = [pool.submit(with_retries, call, backoff) for call in calls]
    errors = [error for one in asked if (error := one.exception()) is not None]
    if len(errors) == len(asked) and all(isinstance(one, MaskedLarkError) and not isinstance(one, HelperUnavailable) for one in errors):
        store.remove(query_id)
    if errors:
        raise errors[0]
    first, second = (one.result() for one in asked)
    worst = Epsilons(
        ad_server=max(first.dataset_spent.ad_server, second.dataset_spent.ad_server),
        colluding=max(first.dataset_spent.colluding, second.dataset_spent.colluding),
    )
    return BothAnswers(combine(first.share, second.share), worst)
