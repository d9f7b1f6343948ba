"""The store's mark changes with whatever pages show, and with nothing else, on both engines."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from adserver.measuring.domains import distinct_codes
from adserver.measuring.request import Request, plan_query
from adserver.records.access import GrantKind, Scope
from adserver.records.asked_query import StoredAnswer
from adserver.records.job_record import Stop
from adserver.records.job_state import JobEvent
from adserver.records.round_figures import RoundFigures
from adserver.store.access import AccessStore
from adserver.store.change_token import store_mark
from adserver.store.datasets import ChosenReports, DatasetStore
from adserver.store.leases import JobLeases
from adserver.store.queries import QueryStore
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.privacy.accounting import Epsilons
from tests import builders
from tests.adserver.job_world import Site, plan_for, sealed
from tests.builders import NOW
from tests.measured import dataset_of, measuring_world

OF: Final = sealed()
SHOP: Final = measuring_world()
JOB: Final = bytes([1]) * 16
HANDLE: Final = bytes([7]) * 16
REPORTS: Final = builders.reports(OF.of, builders.examples(OF.of.task, 6))
TASK: Final = OF.of.task.task_id


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    made = Site(tmp_path, OF, url=database_url)
    TaskStore(made.engine).add(OF.of.bundle, created_at=NOW)
    yield made
    made.engine.dispose()


@pytest.fixture
def changed(site: Site) -> Callable[[Callable[[], object]], set[str]]:
    """Does something; the parts of the mark that it changes."""

    def by(act: Callable[[], object]) -> set[str]:
        before = store_mark(site.engine)
        assert store_mark(site.engine) == before
        act()
        after = store_mark(site.engine)
        return {name for name in ("reports", "others") if getattr(before, name) != getattr(after, name)}

    return by


def figures(rounds_done: int) -> RoundFigures:
    return RoundFigures(
        rounds_done=rounds_done,
        finished_at_s=NOW,
        learning_rate=None,
        gradient_norm=None,
        noise_to_signal=None,
        loss=None,
        accuracy=None,
    )


def test_reports_change_their_part_alone(site: Site, changed: Callable[..., set[str]]) -> None:
    store = ReportStore(site.engine)
    assert changed(lambda: store.add(REPORTS[:4])) == {"reports"}
    assert changed(lambda: store.add(REPORTS[:4])) == set()
    assert changed(lambda: store.add(REPORTS)) == {"reports"}


def test_a_task_and_a_dataset_change_the_mark(site: Site, changed: Callable[..., set[str]]) -> None:
    ReportStore(site.engine).add(REPORTS)
    store = DatasetStore(site.engine)
    assert changed(lambda: TaskStore(site.engine).add(SHOP.bundle, created_at=NOW)) == {"others"}
    begun = store.begin(TASK, bytes([6]) * 16, limit=6, created_at=NOW)
    assert changed(lambda: store.give_back(begun)) == {"others", "reports"}
    dataset = store.begin(TASK, HANDLE, limit=6, created_at=NOW)
    choice = ChosenReports(
        is_chosen=np.ones(6, bool), dataset_id=bytes(32), view_mismatch=0, dropped=(Counter(), Counter())
    )
    assert "others" in changed(lambda: store.choose(dataset, choice))
    assert changed(lambda: store.finish(store.find(bytes(32).hex()))) == {"others"}


def test_each_step_of_a_job_changes_the_mark_and_a_lease_does_not(
    site: Site, changed: Callable[..., set[str]]
) -> None:
    leases = JobLeases(site.engine, site.clock, owner="one", lease_s=10.0)
    assert changed(lambda: site.submit(plan_for(OF, job_id=JOB))) == {"others"}
    assert changed(leases.claim) == {"others"}
    assert changed(lambda: leases.renew(JOB)) == set()
    assert changed(lambda: leases.record(JOB, figures(1))) == {"others"}
    assert changed(lambda: leases.record(JOB, figures(2))) == {"others"}
    assert changed(lambda: leases.wait(JOB, Stop(reason="away", cause="gone"))) == {"others"}
    assert changed(lambda: leases.go_on(JOB)) == {"others"}
    assert changed(lambda: leases.let_go(JOB, JobEvent.FAIL, Stop(reason="bug", cause="one"))) == {"others"}
    assert changed(lambda: site.store.resume(JOB)) == {"others"}
    assert changed(lambda: site.store.cancel(JOB)) == {"others"}


def test_a_query_and_its_answer_change_the_mark(site: Site, changed: Callable[..., set[str]]) -> None:
    TaskStore(site.engine).add(SHOP.bundle, created_at=NOW)
    store = QueryStore(site.engine)
    asked = Request(values=("click",), group_by=("campaign",), domains={"campaign": distinct_codes([3])})
    planned = plan_query(asked, task=SHOP.task, dataset=dataset_of(SHOP, 12), query_id=bytes(16))
    answer = StoredAnswer(total=np.zeros(1, np.int64), dataset_spent=Epsilons(ad_server=1.0, colluding=2.0))
    assert changed(lambda: store.add(planned, asked_at=NOW)) == {"others"}
    assert changed(lambda: store.keep_answer(bytes(16), answer)) == {"others"}


def test_a_query_in_place_of_one_that_was_removed_changes_the_mark(
    site: Site, changed: Callable[..., set[str]]
) -> None:
    TaskStore(site.engine).add(SHOP.bundle, created_at=NOW)
    store = QueryStore(site.engine)
    asked = Request(values=("click",), group_by=("campaign",), domains={"campaign": distinct_codes([3])})

    def ask(number: int, asked_at: float) -> None:
        query_id = bytes([number]) * 16
        of = plan_query(asked, task=SHOP.task, dataset=dataset_of(SHOP, 12), query_id=query_id)
        store.add(of, asked_at=asked_at)

    def replace() -> None:
        store.remove(bytes([1]) * 16)
        ask(3, NOW + 8.5)

    ask(1, NOW + 1.0)
    ask(2, NOW + 9.0)
    assert changed(replace) == {"others"}


def test_a_grant_changes_nothing(site: Site, changed: Callable[..., set[str]]) -> None:
    access = AccessStore(site.engine, site.clock)
    assert changed(lambda: access.make(GrantKind.TOKEN, Scope.READ, name="", lasts_s=9.0)) == set()
