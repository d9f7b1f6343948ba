"""What asking queries and evaluations over a dataset has in common: each is stored before it is asked."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from adserver.peers.query_both import QueryHelper, ask_both
from adserver.peers.retrying import BRIEF, Backoff
from adserver.records.asked_query import ChosenId, PlannedQuery, S, StoredAnswer
from adserver.store.database import Clock
from adserver.store.datasets import Dataset
from adserver.store.queries import QueryStore
from maskedlark.errors import HelperUnavailable, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.reports.task import Task

_Spec = TypeVar("_Spec", bound=AnyQuery)
_Result = TypeVar("_Result")


@frozen
class _KeptQuery(Generic[S]):
    """A query as it is stored, and whether it was stored just now.

    Attributes:
        planned: The query.
        is_new: Whether it was surely never asked before.
    """

    planned: PlannedQuery[S]
    is_new: bool


def release_fields(
    task: Task, dataset: Dataset, spec: AnyQuery, answer: StoredAnswer, before: Sequence[Charge] = ()
) -> dict[str, Any]:
    """Return the fields of `ReleasedResult` for a release; `before` was charged for it, too."""
    return {
        "query_id": spec.query_id.hex(),
        "task_id": spec.task_id.hex(),
        "dataset_id": spec.dataset_id.hex(),
        "mechanism": task.mechanism,
        "records": dataset.size,
        "delta": task.delta,
        "cost": spent([*before, *spec.charges(task)], task.delta),
        "dataset_spent": answer.dataset_spent,
        "unit": task.unit,
        "reports_per_user": task.reports_per_user,
    }


@frozen
class Asking(Generic[_Spec, _Result]):
    """Asks both helpers over one dataset of a task.

    Attributes:
        helpers: Both, by role.
        task: The dataset's.
        dataset: The dataset.
        store: Keeps what is asked, and the answers.
        clock: Unix seconds.
        backoff: How long a helper is asked again that does not answer.
    """

    helpers: tuple[QueryHelper, QueryHelper]
    task: Task
    dataset: Dataset
    store: QueryStore
    clock: Clock
    backoff: Backoff = BRIEF

    def again(self, planned: PlannedQuery[_Spec]) -> _Result:
        """Read the kept answer to a query; ask again if none was kept. What was charged costs nothing again.

        Raises:
            InvalidModel, JobRefused: what a helper refuses with.
            HelperUnavailable: a helper did not answer in time.
        """
        kept = self.store.answer(planned.spec.query_id)
        found = self.store.discovery_before(planned.spec.query_id)
        if kept is None:
            return self._ask_and_store(planned, None, is_new=False, found=found)
        return self._read(planned, kept, found)

    def find_repeated(self, planned: PlannedQuery[_Spec], chosen: ChosenId) -> _Result:
        """Return the stored result of a query that was asked before under an id that the client chose.

        The helpers are asked only if no answer was kept. Raises as `again`.
        """
        discovery = self.store.before(chosen, DiscoverySpec)
        found = None if discovery is None else discovery.spec
        kept = self.store.answer(planned.spec.query_id)
        if kept is None:
            return self._ask_and_store(planned, chosen, is_new=False, found=found)
        return self._read(planned, kept, found)

    @abstractmethod
    def _length(self, spec: _Spec) -> int:
        """Return how many numbers the answer has."""

    @abstractmethod
    def _read(
        self, planned: PlannedQuery[_Spec], answer: StoredAnswer, found: DiscoverySpec | None
    ) -> _Result:
        """Decode the result; its cost includes that of the discovery `found`, if there was one."""

    def _ask_and_store(
        self,
        planned: PlannedQuery[_Spec],
        chosen: ChosenId | None,
        *,
        is_new: bool,
        found: DiscoverySpec | None = None,
    ) -> _Result:
        """Ask both helpers, and read and keep their answer."""
        length = self._length(planned.spec)
        with self._naming(planned.spec.query_id):
            answer = self._ask(planned.spec, length, planned.beside, is_new=is_new)
        # Read first: an answer that no honest reports could give is refused, and must not be kept.
        result = self._read(planned, answer, found)
        self._keep_answer(planned, chosen, answer)
        return result

    @contextmanager
    def _naming(self, query_id: bytes) -> Iterator[None]:
        """Name the id by which a request is repeated at no cost, where one helper is lost or refuses."""
        try:
            yield
        except HelperUnavailable as away:
            # A helper may have charged it: who asks for the same under a new id pays for it twice
            named = query_id.hex()
            raise HelperUnavailable(
                f"{away}; query {named} is kept and counts as spent: once both helpers answer, repeat the "
                f"same request with --query-id {named} (in Python query_id=), which is charged only once",
                retry_after_s=away.retry_after_s,
            ) from None
        except JobRefused as refused:
            # One that both refuse is forgotten
            if not self.store.some([query_id]):
                raise
            named = query_id.hex()
            raise JobRefused(
                refused.reason,
                f"{refused}; query {named} is kept, and the other helper may have charged it: once both "
                f"helpers would answer, repeat the same request with --query-id {named} (in Python "
                "query_id=), which is charged only once at each",
            ) from None

    def _keep(self, planned: PlannedQuery[S], chosen: ChosenId | None = None) -> "_KeptQuery[S]":
        """Store a query before a helper is asked; what another request stored under a chosen id stays.

        Raises:
            JobRefused(QUERY_CHANGED): something else was asked under the id.
            HelperUnavailable: another server, which both helpers refused, forgets it in this moment.
        """
        request = None if chosen is None else chosen.request
        is_new = self.store.add(planned, asked_at=self.clock(), request=request)
        if is_new:
            return _KeptQuery(planned=planned, is_new=True)
        before = None if chosen is None else self.store.before(chosen, type(planned.spec))
        if before is None:
            raise HelperUnavailable("another request has just released this query id: send the request again")
        return _KeptQuery(planned=before, is_new=False)

    def _keep_answer(self, planned: PlannedQuery[S], chosen: ChosenId | None, answer: StoredAnswer) -> None:
        """Keep an answer, and its query if another server that was refused forgot it meanwhile."""
        # An answer without its query could not be found again under the id that the client chose.
        if chosen is not None:
            self._keep(planned, chosen)
        self.store.keep_answer(planned.spec.query_id, answer)

    def _ask(self, spec: AnyQuery, length: int, beside: bytes = b"", *, is_new: bool) -> StoredAnswer:
        """Query both helpers and add their answers of `length` numbers; forget a query that both refuse."""
        calls = [partial(helper.run_query, spec, beside, length) for helper in self.helpers]
        return ask_both(calls, self.backoff, forget=partial(self.store.remove, spec.query_id), is_new=is_new)
