"""Queries at the helper: checked, charged with their answers, and answered once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, StoredQuery
from helper.releases.answering import Call
from helper.releases.queries import AnsweredQuery
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.grouping import answer_query
from maskedlark.releases.query import Axis, Measure, MeasureKind, QuerySpec, codes_digest
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.report import Example, MeasuredValues
from tests.helper.parties import ASKED, Scene
from tests.maskedlark.query_specs import discovery, query
from tests.measured import SHOP
from tests.refusals import refused

COUNT = Measure(value="count", scale=1 << 16)
PURCHASE = Measure(value="purchase", scale=1 << 10)
BY_PLACE = (Axis(key="place", size=3),)


class Shop(Scene):
    """Both helpers with a dataset of 30 reports.

    Campaign n mod 5, place n mod 3, language 0, click 1, purchase n.
    """

    def __init__(self, folder: Path, *, min_cell_count: int = 2, **changes: Any) -> None:
        super().__init__(
            folder, measurement={**SHOP, "min_cell_count": min_cell_count}, min_batch_size=2, **changes
        )
        features = np.zeros(self.task.num_features, np.uint8)
        made = [
            Example(
                features=features, label=1.0, measured=MeasuredValues(keys=(n % 5, n % 3, 0), values=(1, n))
            )
            for n in range(30)
        ]
        self.dataset = self.seal(made)

    def query(self, **changes: Any) -> QuerySpec:
        usual = {"measures": (COUNT, PURCHASE), "group_by": BY_PLACE, "levels": (1,)}
        return query(self, **{"dataset_id": self.dataset, **usual, **changes})

    def ask(self, role: int, spec: QuerySpec, codes: bytes = b"") -> AnsweredQuery:
        return self.cores[role].queries.answer(spec, lambda _: codes, ASKED)

    def total(self, spec: QuerySpec, codes: bytes = b"") -> list[int]:
        count = spec.num_numbers(self.task)
        first, second = (AggregateShare.decode(self.ask(role, spec, codes).answer, count) for role in (0, 1))
        return [int(value) for value in combine(first, second)]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def noisy(tmp_path: Path) -> Shop:
    return Shop(tmp_path, mechanism="gaussian", norm="l2", epsilon=2.0, collusion_epsilon=8.0)


def noise(spec: QuerySpec, multiplier: float) -> QuerySpec:
    return replace(spec, noise_multiplier=multiplier, threshold_noise_multiplier=4 * multiplier)


def refusal(work: Any, *arguments: Any) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        work(*arguments)
    return refused.value.reason


def test_sealed_reports_are_summed_by_group(shop: Shop) -> None:
    by_place = [[1 << 16, n << 10] for n in range(30)]
    expected = [
        sum(row[column] for n, row in enumerate(by_place) if n % 3 == place)
        for place in range(3)
        for column in (0, 1)
    ]
    assert shop.total(shop.query()) == [*expected, 0, 0]


def test_codes_come_beside_the_query(shop: Shop) -> None:
    codes = np.array([1, 4, 77], np.uint32)
    axes = (Axis(key="campaign", size=3, codes_digest=codes_digest(codes)),)
    spec = shop.query(measures=(COUNT,), group_by=axes)
    assert shop.total(spec, codes.tobytes()) == [6 << 16, 6 << 16, 0, 18 << 16]
    assert refusal(shop.ask, 0, replace(spec, query_id=b"r" * 16), codes.tobytes()[:8]) is JobReason.MALFORMED


def test_no_more_is_read_beside_a_query_than_the_codes_that_its_axes_need(shop: Shop) -> None:
    codes = np.array([1, 4, 77], np.uint32)
    axes = (Axis(key="campaign", size=3, codes_digest=codes_digest(codes)), *BY_PLACE)
    limits = []

    def beside(limit: int) -> bytes:
        limits.append(limit)
        return codes.tobytes()

    shop.cores[0].queries.answer(shop.query(measures=(COUNT,), group_by=axes, levels=(2,)), beside, ASKED)
    assert limits == [codes.nbytes]


def test_a_dataset_is_read_from_disk_after_a_restart(shop: Shop) -> None:
    before = shop.total(shop.query())
    shop.restart()
    assert shop.total(shop.query(query_id=b"r" * 16)) == before


def test_the_same_query_gets_the_same_bytes_and_is_charged_once(noisy: Shop) -> None:
    spec = noise(noisy.query(), 5.0)
    first = noisy.ask(0, spec)
    assert noisy.ask(0, spec) == first
    noisy.restart()
    assert noisy.ask(0, spec) == first
    assert len(noisy.cores[0].queries.ledger.reservations(noisy.dataset)) == 1


def test_the_same_id_with_another_content_is_refused(noisy: Shop) -> None:
    spec = noise(noisy.query(), 5.0)
    noisy.ask(0, spec)
    finer = replace(spec, levels=(0, 1))  # levels that were not charged together
    assert refusal(noisy.ask, 0, finer) is JobReason.QUERY_CHANGED
    assert refusal(noisy.ask, 0, replace(spec, measures=(COUNT,))) is JobReason.QUERY_CHANGED


def test_a_fresh_query_has_fresh_noise(noisy: Shop) -> None:
    spec = noise(noisy.query(), 50.0)
    assert noisy.total(spec) != noisy.total(replace(spec, query_id=b"r" * 16))


def test_a_query_beyond_the_budget_is_refused_with_what_is_left_and_what_would_fit(noisy: Shop) -> None:
    noisy.ask(0, noise(noisy.query(), 4.0))
    greedy = noise(noisy.query(query_id=b"r" * 16), 1.5)
    with refused(JobReason.BUDGET_EXHAUSTED) as refusal:
        noisy.ask(0, greedy)
    message = str(refusal.value)
    assert "is left" in message
    multiplier = float(message.split("noise_multiplier ")[1].split(")", maxsplit=1)[0])
    assert noisy.ask(0, noise(greedy, multiplier * 1.001)).spent.ad_server <= 2.0
    assert noisy.cores[0].queries.ledger.query(ReleaseKey(noisy.task_id, b"r" * 16)) is not None


def test_nothing_fits_a_budget_that_is_spent(noisy: Shop) -> None:
    noisy.ask(0, noise(noisy.query(), 2.6))
    with refused(JobReason.BUDGET_EXHAUSTED, "is left"):
        noisy.ask(0, noise(noisy.query(query_id=b"r" * 16), 0.5))


def test_jobs_and_queries_spend_one_budget(noisy: Shop) -> None:
    noisy.ask(0, noise(noisy.query(), 2.6))
    job = noisy.job(noisy.dataset, noise_multiplier=2.0, rounds=10)
    assert refusal(noisy.start, job) is JobReason.BUDGET_EXHAUSTED


def test_a_query_counts_what_jobs_reserve(noisy: Shop) -> None:
    noisy.ask(0, noise(noisy.query(), 2.0))  # fits a fresh budget
    other = Shop(
        noisy.parties[0].data.parent / "again",
        mechanism="gaussian",
        norm="l2",
        epsilon=2.0,
        collusion_epsilon=8.0,
    )
    other.start(other.job(other.dataset, noise_multiplier=4.0, rounds=4))
    assert refusal(other.ask, 0, noise(other.query(), 2.0)) is JobReason.BUDGET_EXHAUSTED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task_id": b"x" * 32}, JobReason.UNKNOWN_TASK),
        ({"dataset_id": b"x" * 32}, JobReason.UNKNOWN_DATASET),
        ({"measures": (Measure(value="view", scale=1),)}, JobReason.UNDECLARED),
        ({"measures": (Measure(value="click", kind=MeasureKind.HISTOGRAM, scale=1),)}, JobReason.UNDECLARED),
        ({"group_by": (Axis(key="age", size=3),)}, JobReason.UNDECLARED),
        ({"group_by": (Axis(key="place", size=1 << 20),)}, JobReason.DOMAIN_TOO_LARGE),
        ({"noise_multiplier": 1.0}, JobReason.NOISE_OUT_OF_RANGE),
    ],
)
def test_a_wrong_query_is_refused_and_not_charged(
    shop: Shop, changes: dict[str, Any], reason: JobReason
) -> None:
    assert refusal(shop.ask, 0, shop.query(**changes)) is reason
    assert shop.cores[0].queries.ledger.reservations(shop.dataset) == ()


def test_an_expired_task_answers_no_new_query_and_repeats_old_answers(shop: Shop) -> None:
    first = shop.ask(0, shop.query())
    shop.parties[0].now = shop.task.expires_at
    assert shop.ask(0, shop.query()) == first
    assert refusal(shop.ask, 0, shop.query(query_id=b"r" * 16)) is JobReason.TASK_EXPIRED


def test_a_task_with_cells_under_the_floor_is_refused(tmp_path: Path) -> None:
    with refused(JobReason.TASK_REFUSED, "min_cell_count"):
        Shop(tmp_path, min_cell_count=1)


def test_both_helpers_find_the_same_codes(shop: Shop) -> None:
    spec = discovery(shop, query_id=b"f" * 16, dataset_id=shop.dataset, max_codes=6)
    answers = [core.queries.answer(spec, lambda _: b"", ASKED).answer for core in shop.cores]
    first, second = (AggregateShare.decode(answer, spec.num_values) for answer in answers)
    assert combine(first, second).tolist() == [5, 0, 1, 2, 3, 4, 0]
    assert shop.cores[0].queries.answer(spec, lambda _: b"", ASKED).answer == answers[0]
    assert refusal(shop.ask, 0, shop.query(query_id=b"f" * 16)) is JobReason.QUERY_CHANGED


class _DyingLedger(Ledger):
    """A process that dies when it is about to keep an answer."""

    def add_query(self, *_: Any) -> bool:
        raise KeyboardInterrupt


def test_a_crash_before_the_charge_releases_nothing_and_spends_nothing(noisy: Shop) -> None:
    spec = noise(noisy.query(), 5.0)
    noisy.restart(ledger_type=_DyingLedger)
    with pytest.raises(KeyboardInterrupt):
        noisy.ask(0, spec)
    noisy.restart()
    assert noisy.cores[0].queries.ledger.reservations(noisy.dataset) == ()
    assert noisy.ask(0, spec).answer


def test_concurrent_askers_of_one_query_all_get_the_charged_bytes(noisy: Shop) -> None:
    spec = noise(noisy.query(), 5.0)
    with ThreadPoolExecutor(6) as pool:
        answers = set(pool.map(lambda _: noisy.ask(0, spec).answer, range(6)))
    assert len(answers) == 1
    assert len(noisy.cores[0].queries.ledger.reservations(noisy.dataset)) == 1


def test_a_query_is_not_charged_before_its_answer_may_leave(noisy: Shop) -> None:
    spec, held = noise(noisy.query(), 5.0), list[int]()
    core = noisy.cores[0]

    def hold() -> None:
        held.append(len(core.queries.ledger.reservations(noisy.dataset)))

    first = core.queries.answer(spec, lambda _: b"", Call(caller=None, hold=hold))
    assert held == [0]
    assert core.queries.answer(spec, lambda _: b"", Call(caller=None, hold=hold)).answer == first.answer
    assert held == [0, 1]


def test_a_query_that_is_charged_while_it_is_asked_again_is_not_refused_for_its_own_cost(noisy: Shop) -> None:
    spec = noise(noisy.query(), 2.6)
    charged = noisy.ask(0, spec)

    class LooksTooEarly(Ledger):
        has_looked = False

        def query(self, query: ReleaseKey) -> StoredQuery | None:
            is_first, self.has_looked = not self.has_looked, True
            return None if is_first else super().query(query)

    noisy.restart(ledger_type=LooksTooEarly)
    assert noisy.ask(0, spec) == charged
    assert len(noisy.cores[0].queries.ledger.reservations(noisy.dataset)) == 1


def test_concurrent_queries_never_pass_the_budget(noisy: Shop) -> None:
    def ask(number: int) -> bool:
        try:
            noisy.ask(0, noise(noisy.query(query_id=bytes([number]) * 16), 3.5))
        except JobRefused as refused:
            return refused.reason is not JobReason.BUDGET_EXHAUSTED
        return True

    with ThreadPoolExecutor(4) as pool:
        answered = sum(pool.map(ask, range(8)))
    assert 1 <= answered < 8
    assert len(noisy.cores[0].queries.ledger.reservations(noisy.dataset)) == answered


@pytest.mark.parametrize("is_late", [False, True], ids=["before the work", "before the charge"])
def test_a_query_that_nobody_waits_for_any_more_is_not_charged(
    noisy: Shop, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in between the caller goes: test_interrupted_queries.py."""
    spec, compute, is_computed = noise(noisy.query(), 5.0), answer_query, Event()

    def computing(**how: Any) -> AggregateShare:
        share = compute(**how)
        is_computed.set()
        return share

    monkeypatch.setattr("helper.releases.queries.answer_query", computing)

    def interrupt() -> None:
        if is_computed.is_set() or not is_late:
            raise JobRefused(JobReason.CANCELLED, "the caller has gone")

    with pytest.raises(JobRefused, match="gone"):
        noisy.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None, check_awaited=interrupt))
    assert noisy.cores[0].queries.ledger.reservations(noisy.dataset) == ()
    answer = noisy.ask(0, spec)
    assert (
        noisy.cores[0].queries.answer(spec, lambda _: b"", Call(caller=None, check_awaited=interrupt))
        == answer
    )  # what was charged is told
