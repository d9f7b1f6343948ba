"""Queries in the database, SQLite or PostgreSQL.

Every kind comes back as it was asked, and only what was charged stays.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from sqlalchemy import Engine, insert

from adserver.measuring.domains import distinct_codes
from adserver.measuring.evaluator import plan_evaluation
from adserver.measuring.request import Request, plan_discovery, plan_query
from adserver.records.asked_query import ChosenId, PlannedQuery, StoredAnswer
from adserver.records.dataset_state import DatasetState
from adserver.store.database import create_tables
from adserver.store.queries import QueryStore
from adserver.store.schema import datasets
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.runtime.database import open_database
from tests.builders import NOW
from tests.measured import DATASET, dataset_of, measuring_world

OF = measuring_world()
HELD = dataset_of(OF, 12)
MODEL = dense_network([OF.task.num_features, 1], "relu", seed=1)


@pytest.fixture
def store(database_url: str) -> Iterator[QueryStore]:
    engine: Engine = open_database(database_url)
    create_tables(engine)
    TaskStore(engine).add(OF.bundle, created_at=NOW)
    yield QueryStore(engine)
    engine.dispose()


def sums(query_id: bytes) -> PlannedQuery[QuerySpec]:
    request = Request(
        values=("click",), group_by=("campaign",), domains={"campaign": distinct_codes(range(3_000))}
    )
    return plan_query(request, task=OF.task, dataset=HELD, query_id=query_id)


def discovery(query_id: bytes) -> DiscoverySpec:
    request = Request(values=("count",), group_by=("campaign",), is_discovered=True)
    return plan_discovery(request, task=OF.task, dataset=HELD, query_id=query_id, keys=("campaign",)).spec


def refused(store: QueryStore, prefix: str) -> bool:
    with pytest.raises(JobRefused) as refusal:
        store.find(prefix, DiscoverySpec)
    return refusal.value.reason is JobReason.UNKNOWN_QUERY


def test_a_query_of_each_kind_comes_back_with_what_is_sent_beside_it(store: QueryStore) -> None:
    planned, found = sums(b"\x11" * 16), discovery(b"\x22" * 16)
    evaluation = plan_evaluation(MODEL, task=OF.task, dataset=HELD, query_id=b"\x33" * 16)
    assert len(planned.beside) == 4 * 3_000
    store.add(planned, asked_at=NOW + 2)
    store.add(PlannedQuery(spec=found), asked_at=NOW + 1)
    store.add(evaluation, asked_at=NOW)
    assert store.find("11", QuerySpec) == planned
    assert store.find("2222", DiscoverySpec) == PlannedQuery(spec=found)
    assert store.find("33", EvaluationSpec) == evaluation
    with pytest.raises(JobRefused, match="of kind evaluation, not query"):
        store.find("33", QuerySpec)
    assert store.of_dataset(DATASET) == (evaluation.spec, found, planned.spec)
    assert store.of_dataset(b"another" + bytes(25)) == ()


def test_a_query_that_was_not_charged_is_forgotten_and_the_others_stay(store: QueryStore) -> None:
    for query_id in (b"\x11" * 16, b"\x22" * 16):
        store.add(PlannedQuery(spec=discovery(query_id)), asked_at=NOW)
    for _ in range(2):
        store.remove(b"\x11" * 16)
    assert refused(store, "11")
    assert store.find("22", DiscoverySpec).spec == discovery(b"\x22" * 16)


def test_a_prefix_of_two_queries_or_of_none_finds_none(store: QueryStore) -> None:
    for query_id in (b"\x11" * 16, b"\x12" * 16):
        store.add(PlannedQuery(spec=discovery(query_id)), asked_at=NOW)
    assert all(refused(store, prefix) for prefix in ("1", "", "3", "no hex"))


def test_an_id_is_kept_for_one_query_only(store: QueryStore) -> None:
    assert store.add(PlannedQuery(spec=discovery(b"\x11" * 16)), asked_at=NOW)
    assert not store.add(sums(b"\x11" * 16), asked_at=NOW)
    assert store.find("11", DiscoverySpec).spec == discovery(b"\x11" * 16)


def test_what_was_asked_under_a_chosen_id_is_found_by_the_same_request_only(store: QueryStore) -> None:
    chosen = ChosenId.of("5a" * 16, "query", {"values": ["click"]})
    assert store.before(chosen, QuerySpec) is None
    found, planned = discovery(chosen.of_discovery), sums(chosen.query_id)
    store.add(PlannedQuery(spec=found), asked_at=NOW, request=chosen.request)
    assert store.before(chosen, QuerySpec) is None
    store.add(planned, asked_at=NOW, request=chosen.request)
    assert store.before(chosen, QuerySpec) == planned
    assert store.before(chosen, DiscoverySpec) == PlannedQuery(spec=found)
    for other in (
        ChosenId.of("5a" * 16, "query", {"values": ["purchase"]}),
        ChosenId.of("5a" * 16, "evaluation", {"values": ["click"]}),
    ):
        with pytest.raises(JobRefused) as refusal:
            store.before(other, QuerySpec)
        assert refusal.value.reason is JobReason.QUERY_CHANGED


def test_an_id_whose_discovery_was_asked_is_used_and_so_is_one_that_nobody_chose(store: QueryStore) -> None:
    chosen = ChosenId.of("5a" * 16, "query", {"discover": True})
    store.add(PlannedQuery(spec=discovery(chosen.of_discovery)), asked_at=NOW, request=chosen.request)
    store.add(PlannedQuery(spec=discovery(b"\x11" * 16)), asked_at=NOW)
    for used in ("5a" * 16, "11" * 16):
        with pytest.raises(JobRefused) as refusal:
            store.before(ChosenId.of(used, "query", {}), QuerySpec)
        assert refusal.value.reason is JobReason.QUERY_CHANGED


def test_a_query_that_is_answered_is_not_forgotten(store: QueryStore) -> None:
    store.add(PlannedQuery(spec=discovery(b"\x11" * 16)), asked_at=NOW)
    cost = Epsilons(ad_server=1.0, colluding=2.0)
    store.keep_answer(b"\x11" * 16, StoredAnswer(total=np.zeros(1, np.int64), dataset_spent=cost))
    store.remove(b"\x11" * 16)
    assert store.find("11", DiscoverySpec).spec == discovery(b"\x11" * 16)


def test_the_stamp_of_a_dataset_changes_with_each_query_that_comes_or_is_removed(
    store: QueryStore, database_url: str
) -> None:
    task_id, dataset_id = OF.task.task_id, HELD.dataset_id
    assert dataset_id is not None
    row = {"handle": b"h" * 16, "task_id": task_id, "state": DatasetState.COMMITTED, "created_at": float(NOW)}
    engine = open_database(database_url)
    with engine.begin() as connection:
        connection.execute(insert(datasets).values({**row, "received": 12, "dataset_id": dataset_id}))
    engine.dispose()
    seen = [store.stamps([task_id, b"o" * 32])]
    assert seen == [{}]
    for number in (1, 2):
        store.add(sums(bytes([number]) * 16), asked_at=NOW + 0.1 * number)
        seen.append(store.stamps([task_id]))
        store.remove(bytes([number]) * 16)
    assert store.stamps([task_id]) == {}
    assert [one.keys() for one in seen[1:]] == [{(task_id, dataset_id)}] * 2
    assert seen[1] != seen[2]
    assert store.stamps([b"o" * 32]) == {}
