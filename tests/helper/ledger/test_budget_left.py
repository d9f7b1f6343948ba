"""The gauge of what is left of each dataset's spending is true after whatever the ledger committed, and cheap
where nothing has changed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from helper.core import HelperCore
from helper.ledger import budget_left, spending
from helper.ledger.budget_left import BudgetsLeft
from helper.ledger.budget_report import BudgetReport
from helper.ledger.records import Reservation
from helper.ledger.spending import cost
from helper.serving.metrics import HelperMetrics
from maskedlark import canonical
from maskedlark.releases.query import Measure, QuerySpec
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.reports.task import Task
from tests.helper.parties import ASKED, Scene
from tests.measured import SHOP
from tests.patience import HANGS_S


class Shop(Scene):
    """Two helpers whose task has noise and measurements."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            measurement={**SHOP, "min_cell_count": 2},
            norm="l2",
            mechanism="gaussian",
            epsilon=8.0,
            collusion_epsilon=80.0,
        )

    def dataset(self, seed: int = 0) -> bytes:
        features = np.zeros(self.task.num_features, np.uint8)
        made = [
            Example(features=features, label=1.0, measured=MeasuredValues(keys=(0, 0, 0), values=(1, n)))
            for n in range(20)
        ]
        return self.seal(made, seed)

    def open_job(self, dataset: bytes, name: bytes = b"j", rounds: int = 4) -> Any:
        job = self.job(dataset, job_id=name * 16, rounds=rounds, noise_multiplier=6.0)
        self.start(job)
        return job

    def answer_query(self, dataset: bytes) -> None:
        query = QuerySpec(
            query_id=b"q" * 16,
            task_id=self.task_id,
            dataset_id=dataset,
            measures=(Measure(value="count", scale=1 << 16),),
            group_by=(),
            levels=(0,),
            noise_multiplier=4.0,
            threshold_noise_multiplier=16.0,
        )
        self.cores[0].queries.answer(query, lambda _: b"", ASKED)

    def three_datasets(self) -> list[bytes]:
        """Each with a job."""
        datasets = [self.dataset(seed) for seed in (1, 2, 3)]
        for dataset, name in zip(datasets, (b"a", b"b", b"c"), strict=True):
            self.open_job(dataset, name)
        return datasets

    def hurried(self) -> BudgetsLeft:
        """There is always time for one dataset only."""
        ticks = count(step=budget_left.SCRAPE_S * 0.9)
        return BudgetsLeft(self.cores[0].jobs._ledger, lambda: next(ticks))

    def truth(self, dataset: bytes) -> float:
        return self.task.epsilon - cost(self.task, self.cores[0].jobs._ledger.reservations(dataset)).ad_server

    def gauges(self) -> dict[str, float]:
        return gauges(self.cores[0])


def gauges(core: HelperCore) -> dict[str, float]:
    """What a scrape shows, by the start of each dataset's id."""
    lines = generate_latest(HelperMetrics(core).registry).decode().splitlines()
    return {
        line.split('"')[1]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("helper_budget_left{")
    }


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(budget_left, "SCRAPE_S", HANGS_S)
    return Shop(tmp_path)


def test_a_dataset_with_nothing_but_a_query_is_listed_too(shop: Shop) -> None:
    asked, worked, idle = (shop.dataset(seed) for seed in (1, 2, 3))
    shop.open_job(worked)
    shop.answer_query(asked)
    report = BudgetReport(shop.cores[0].jobs._ledger.engine)
    assert [one.dataset_id for one in report.find_charged(10)] == [worked, asked]
    assert [one.dataset_id for one in report.find_charged(1)] == [worked]
    assert idle.hex()[:12] not in shop.gauges()


def test_the_gauge_follows_jobs_closes_queries_and_restarts(shop: Shop) -> None:
    dataset = shop.dataset()
    name = dataset.hex()[:12]
    assert shop.gauges() == {}
    job = shop.open_job(dataset)
    seen = [shop.gauges()[name]]
    shop.run(job, 0)
    assert shop.gauges() == {name: seen[0]}
    for core in shop.cores:
        core.jobs.close(canonical.encode(job), None)
    seen.append(shop.gauges()[name])
    shop.answer_query(dataset)
    seen.append(shop.gauges()[name])
    assert 0 < seen[0] < seen[1] < shop.task.epsilon
    assert 0 < seen[2] < seen[1]
    assert seen[2] == shop.truth(dataset)
    shop.restart()
    assert shop.gauges() == {name: seen[2]}


def test_only_what_has_changed_is_computed_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[bytes] = []

    def counted(task: Task, held: Sequence[Reservation]) -> float:
        computed.append(held[0].spec.dataset_id)
        return spending.left(task, held)

    monkeypatch.setattr("helper.ledger.budget_left.left", counted)
    first, second = shop.dataset(1), shop.dataset(2)
    job = shop.open_job(first, b"a")
    shop.open_job(second, b"b")
    shop.gauges()
    assert sorted(computed) == sorted([first, second])
    shop.gauges()
    shop.run(job, 0)
    shop.gauges()
    assert len(computed) == 2
    shop.open_job(second, b"c", rounds=1)
    shop.gauges()
    assert computed[2:] == [second]


def test_a_scrape_begins_no_computation_after_its_time_and_the_next_one_goes_on(shop: Shop) -> None:
    datasets, slow = shop.three_datasets(), shop.hurried()
    assert [len(slow.current()) for _ in range(4)] == [1, 2, 3, 3]
    assert {one.dataset_id: one.epsilon for one in slow.current()} == {
        dataset: shop.truth(dataset) for dataset in datasets
    }


def test_no_dataset_is_never_looked_at_though_there_is_always_time_for_one_only(shop: Shop) -> None:
    datasets, slow = shop.three_datasets(), shop.hurried()
    for _ in range(3):
        slow.current()
    before = {one.dataset_id: one.epsilon for one in slow.current()}
    for dataset, name in zip(datasets, (b"d", b"e", b"f"), strict=True):
        shop.open_job(dataset, name, rounds=1)
    for _ in range(3):
        after = {one.dataset_id: one.epsilon for one in slow.current()}
    assert all(after[dataset] == shop.truth(dataset) < before[dataset] for dataset in datasets)


def test_a_scrape_does_not_wait_for_one_that_hangs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = shop.dataset()
    shop.open_job(dataset)
    budgets = BudgetsLeft(shop.cores[0].jobs._ledger)
    first, goes_on, hangs = budgets.current(), Event(), Event()
    shop.open_job(dataset, b"k", rounds=1)

    def hanging(_: Task, __: Sequence[Reservation]) -> float:
        hangs.set()
        goes_on.wait(HANGS_S)
        return 0.5

    monkeypatch.setattr("helper.ledger.budget_left.left", hanging)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(budgets.current)
        assert hangs.wait(HANGS_S)
        assert budgets.current() == first  # at once: in this very thread
        goes_on.set()
        assert [one.epsilon for one in slow.result()] == [0.5]


def test_old_jobs_that_took_nothing_cost_a_scrape_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = shop.dataset()
    for number in range(20):
        job = shop.open_job(dataset, bytes([number]))
        for core in shop.cores:
            core.jobs.close(canonical.encode(job), None)
    read: list[bytes] = []
    monkeypatch.setattr(
        "helper.ledger.rows.decode",
        lambda kind, encoded: read.append(encoded) or canonical.decode(kind, encoded),  # type: ignore[func-returns-value]
    )  # append returns None
    assert [one.held for one in shop.cores[0].budgets_left.current()] == [()]
    assert read == []


def test_datasets_of_open_jobs_come_first_if_there_are_too_many(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_left, "MAX_DATASETS", 1)
    low, high = sorted(shop.dataset(seed) for seed in (1, 2))
    closed = shop.open_job(low, b"a")
    for core in shop.cores:
        core.jobs.close(canonical.encode(closed), None)
    assert list(shop.gauges()) == [low.hex()[:12]]
    shop.open_job(high, b"b")
    assert list(shop.gauges()) == [high.hex()[:12]]
