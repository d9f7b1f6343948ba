"""What asking queries and evaluations over a dataset has in common: each is stored before it is asked."""

from functools import partial

from adserver.peers.asking import QueryHelper, ask_both
from adserver.peers.retrying import BRIEF, Backoff
from adserver.records.asked_query import Answer
from adserver.store.database import Clock
from adserver.store.datasets import Dataset
from adserver.store.queries import QueryStore
from maskedlark.frozen import frozen
from maskedlark.releases.kinds import AnyQuery
from maskedlark.reports.task import Task


@frozen
class Asking:
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

    def _keep(self, spec: AnyQuery, beside: bytes = b"") -> None:
        """Store a new query before a helper is asked."""
        self.store.add(spec, beside, asked_at=self.clock())

    def _ask(self, spec: AnyQuery, length: int, beside: bytes = b"", *, is_new: bool) -> Answer:
        """Both helpers' answers of a length, added; a query that both refuse is forgotten."""
        calls = [partial(helper.run_query, spec, beside, length) for helper in self.helpers]
        return ask_both(calls, self.backoff, forget=partial(self.store.remove, spec.query_id), is_new=is_new)
