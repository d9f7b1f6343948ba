"""Queries over real gRPC, from the ad server's client to the helper's core."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import numpy as np
import pytest

from adserver.peers.client import HelperClient
from helper.ledger.records import key_of
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.interrupt import Interrupt
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.grouping import answer_query
from maskedlark.releases.query import Axis, Measure, QuerySpec, codes_digest
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.report import Example, MeasuredValues
from maskedlark.rpc.faults import calling
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.helper.parties import Scene
from tests.helper.served import served
from tests.maskedlark.query_specs import discovery, query
from tests.measured import SHOP
from tests.patience import HANGS_S
from tests.refusals import refused

CODES = np.arange(0, 400_000, 3, dtype=np.uint32)


class Online(Scene):
    """Both helpers behind ports, with a dataset of 12 reports: campaign 3 n, purchase n."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, measurement={**SHOP, "min_cell_count": 2})
        features = np.zeros(self.task.num_features, np.uint8)
        made = [
            Example(
                features=features, label=1.0, measured=MeasuredValues(keys=(3 * (n % 3), 0, 0), values=(1, n))
            )
            for n in range(12)
        ]
        self.dataset = self.seal(made)
        self.addresses: list[str] = []

    def query(self) -> QuerySpec:
        axis = Axis(key="campaign", size=len(CODES), codes_digest=codes_digest(CODES))
        measures = (Measure(value="purchase", scale=1),)
        return query(self, dataset_id=self.dataset, measures=measures, group_by=(axis,))

    def discovery(self) -> DiscoverySpec:
        return discovery(self, query_id=b"f" * 16, dataset_id=self.dataset, max_codes=5)


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Online]:
    scene = Online(tmp_path_factory.mktemp("online"))
    with served(scene.cores[0]) as first, served(scene.cores[1]) as second:
        scene.addresses += [first, second]
        yield scene


@pytest.fixture
def clients(online: Online) -> Iterator[tuple[HelperClient, HelperClient]]:
    with (
        HelperClient(online.addresses[0], None, HANGS_S) as first,
        HelperClient(online.addresses[1], None, HANGS_S) as second,
    ):
        yield first, second


def test_a_query_with_half_a_megabyte_of_codes_is_answered_in_chunks(
    online: Online, clients: tuple[HelperClient, HelperClient]
) -> None:
    spec = online.query()
    assert spec.num_numbers(online.task) > 1 << 17
    first, second = (
        client.run_query(spec, CODES.tobytes(), spec.num_numbers(online.task)) for client in clients
    )
    sums = combine(first.share, second.share)
    assert sums[:3].tolist() == [sum(range(start, 12, 3)) for start in range(3)]
    assert not sums[3:].any()
    assert first.dataset_spent.ad_server == float("inf")  # a task without noise


def test_a_discovery_is_answered(online: Online, clients: tuple[HelperClient, HelperClient]) -> None:
    spec = online.discovery()
    first, second = (client.run_query(spec, b"", spec.num_values) for client in clients)
    assert combine(first.share, second.share).tolist() == [3, 0, 3, 6, 0, 0]


def test_refusals_arrive_as_they_were_meant(
    online: Online, clients: tuple[HelperClient, HelperClient]
) -> None:
    wrong = {
        JobReason.UNKNOWN_DATASET: replace(online.query(), query_id=b"1" * 16, dataset_id=b"x" * 32),
        JobReason.UNDECLARED: replace(
            online.query(), query_id=b"2" * 16, measures=(Measure(value="view", scale=1),)
        ),
        JobReason.MALFORMED: replace(online.query(), query_id=b"3" * 16),
    }
    for reason, spec in wrong.items():
        with refused(reason):
            clients[0].run_query(spec, b"", 4)


def test_more_codes_than_the_axes_hold_are_cut_off(
    online: Online, clients: tuple[HelperClient, HelperClient]
) -> None:
    spec = replace(online.query(), query_id=b"4" * 16)
    with refused(JobReason.TOO_LARGE):
        clients[0].run_query(spec, CODES.tobytes() + bytes(4), spec.num_numbers(online.task))


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [pb.QueryRequest(codes=b"1234")],
        [pb.QueryRequest(query=b"{}")],
        [pb.QueryRequest(discovery=b"[")],
        [pb.QueryRequest()],
    ],
    ids=["nothing", "codes first", "no query", "no discovery", "an empty message"],
)
def test_hostile_streams_are_refused(online: Online, requests: list[pb.QueryRequest]) -> None:
    with (
        make_channel(online.addresses[0], None) as channel,
        pytest.raises((JobRefused, InvalidTask)) as refused,
        calling("helper"),
    ):
        list(helper_pb2_grpc.HelperStub(channel).RunQuery(iter(requests), timeout=HANGS_S))  # type: ignore[no-untyped-call,unused-ignore]
    assert not isinstance(refused.value, HelperUnavailable)


def test_a_query_that_is_cancelled_while_it_is_computed_is_not_charged(
    online: Online, clients: tuple[HelperClient, HelperClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(online.query(), query_id=b"5" * 16)
    begun, cancelled, ended = Event(), Event(), Event()

    def slow(*, interrupt: Interrupt, **how: Any) -> AggregateShare:
        begun.set()
        with suppress(JobRefused):  # once the helper hears of it, which may be after the caller is told
            while True:
                interrupt()
                sleep(0.01)
        try:
            return answer_query(**how)
        finally:
            ended.set()

    monkeypatch.setattr("helper.releases.queries.answer_query", slow)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(
            clients[0].run_query, spec, CODES.tobytes(), spec.num_numbers(online.task), cancelled=cancelled
        )
        assert begun.wait(HANGS_S)
        cancelled.set()
        with pytest.raises(JobRefused) as refused:
            asked.result(HANGS_S)
        assert ended.wait(HANGS_S)
    assert refused.value.reason is JobReason.CANCELLED
    assert online.cores[0].queries.ledger.query(key_of(spec)) is None
