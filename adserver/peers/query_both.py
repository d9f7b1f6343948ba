"""A query put to both helpers at once, each until it answers.

One that surely neither has charged is forgotten.
"""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Final, Protocol

from adserver.peers.pair import at_both
from adserver.peers.replies import QueryAnswer
from adserver.peers.retrying import Backoff, with_retries
from adserver.records.asked_query import StoredAnswer
from maskedlark.error_contract import INVALID_TASK, Charged, contract
from maskedlark.errors import HelperUnavailable, InvalidModel, InvalidTask, JobReason, JobRefused
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.release import combine

# What the second helper is given to refuse as the first did: a query is forgotten only if both say no
_REFUSAL_S: Final = 2.0


class QueryHelper(Protocol):
    """What a query needs of a helper; `adserver.peers.client.HelperClient` is one."""

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        """Query the helper, which gives the same answer each time; return early when `cancelled` is set."""


class _Question(Protocol):
    """One helper's part of a query."""

    def __call__(self, *, cancelled: Event | None) -> QueryAnswer:
        """Query the helper, which gives the same answer each time; return early when `cancelled` is set."""


class _Asked:
    """One helper's part, asked as often as the backoff says."""

    def __init__(self, call: _Question, backoff: Backoff, cancelled: Event, *, is_new: bool) -> None:
        self._call = call
        self._backoff = backoff
        self._cancelled = cancelled
        self._may_be_charged = not is_new

    def answer(self) -> QueryAnswer:
        """Return the helper's answer, or raise its refusal."""
        return with_retries(self._once, self._backoff, cancelled=self._cancelled)

    def refuses(self, error: BaseException | None) -> bool:
        """Return whether `error` is its answer and means that the query was never charged there.

        A helper looks for the stored answer before it looks at the budget, and after everything else. So a
        query for which no budget is left was never charged; any other refusal that costs nothing says so of a
        query only that was never asked before.
        """
        match error:
            case JobRefused(reason=JobReason.BUDGET_EXHAUSTED):
                return True
            case InvalidTask():
                return not self._may_be_charged and INVALID_TASK.charged is Charged.NO
            case InvalidModel() | JobRefused():
                return not self._may_be_charged and contract(error.reason).charged is Charged.NO
            case _:
                return False

    def _once(self) -> QueryAnswer:
        try:
            return self._call(cancelled=self._cancelled)
        except HelperUnavailable:
            self._may_be_charged = True  # the answer may be what was lost
            raise


def ask_both(
    calls: Sequence[_Question], backoff: Backoff, *, forget: Callable[[], None], is_new: bool
) -> StoredAnswer:
    """Query both helpers and add their answers.

    If one helper fails, the other is waited for only as long as a refusal takes.

    Args:
        calls: One a helper.
        backoff: How long a helper is asked again that does not answer.
        forget: Forgets the query; called if both helpers say that they never charged it.
        is_new: Whether the query was never asked before.

    Raises:
        HelperUnavailable: a helper did not answer before the backoff gave up; it may have charged the query,
            so it stays remembered.
        MaskedLarkError: what a helper refused with.
        JobRefused(HELPERS_DISAGREE)
    """
    cancelled = Event()
    asked = [_Asked(call, backoff, cancelled, is_new=is_new) for call in calls]

    def ended(errors: Sequence[BaseException | None]) -> None:
        if all(one.refuses(error) for one, error in zip(asked, errors, strict=True)):
            forget()

    first, second = at_both(lambda role: asked[role].answer(), cancelled, grace_s=_REFUSAL_S, ended=ended)
    # The two ledgers may differ by a release that one helper alone charged: the larger one is what counts
    worst = Epsilons(
        ad_server=max(first.dataset_spent.ad_server, second.dataset_spent.ad_server),
        colluding=max(first.dataset_spent.colluding, second.dataset_spent.colluding),
    )
    return StoredAnswer(total=combine(first.share, second.share), dataset_spent=worst)
