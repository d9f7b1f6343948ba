"""Workers add the updates of a federated round up as this machine does, whichever is lost, lies or leaves."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helper.datasets import updates
from helper.datasets.frames import SealedSegment
from helper.datasets.records import DatasetRecords
from helper.executors import worker
from helper.executors.clustered import ClusterExecutor, _AddingWork
from helper.executors.executor import Adding, SummedUpdates
from helper.executors.local import LocalExecutor
from helper.executors.orders import Order, write
from helper.executors.summing import sum_updates
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.interrupt import never
from maskedlark.numbers.field import MODULUS, add, to_signed
from tests.helper.executors.in_process import Fails, ThreadFleet
from tests.helper.parties import NO_WORKERS
from tests.helper.update_parties import UpdateScene
from tests.update_builders import FORM

DEVICES = 11
PARTS = 6


class Site:
    """A round's dataset at both helpers, and a cluster that adds it up in six parts."""

    def __init__(self, folder: Path) -> None:
        self.scene = UpdateScene(folder)
        self.round = self.scene.round()
        self.vectors = self.scene.vectors(DEVICES)
        self.dataset = self.scene.seal_round(self.round, self.scene.sealed(self.round, self.vectors))
        self.fleet = ThreadFleet()
        self.local = LocalExecutor(NO_WORKERS)
        self.cluster = ClusterExecutor(self.fleet, self.local)

    def updates(self, role: int = 0) -> DatasetRecords:
        return self.scene.cores[role].datasets.round_records(self.round, self.dataset)

    def adding(self, role: int = 0) -> Adding:
        return Adding(form=FORM, role=role, task_id=self.scene.task_id)

    def here(self, role: int = 0) -> SummedUpdates:
        return self.local.add_up(self.adding(role), self.updates(role), never)

    def assert_equal(self, role: int = 0) -> None:
        expected = self.here(role)
        found = self.cluster.add_up(self.adding(role), self.updates(role), never)
        assert found.vector.dtype == expected.vector.dtype
        assert found.vector.tobytes() == expected.vector.tobytes()
        assert found.records == expected.records == DEVICES

    def sealed(self) -> list[SealedSegment]:
        return list(self.updates().sealed(never))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(updates, "MOST_SHARES", 2)
    made = Site(tmp_path)
    yield made
    made.cluster.close()


def passed(site: Site) -> list[bytes]:
    return [part for worker in [*site.fleet.joined.values(), *site.fleet.ended] for part in worker.passed]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_clusters_sum_of_updates_is_this_machines_bit_for_bit(site: Site, workers: int) -> None:
    site.fleet.add(workers)
    site.assert_equal()
    assert len(passed(site)) == 2 * PARTS  # an order and an answer
    assert not site.fleet.ended


def test_shares_that_are_vectors_are_not_sent(site: Site) -> None:
    site.fleet.add(2)
    site.assert_equal(role=1)
    assert not passed(site)


def test_both_helpers_sums_are_what_devices_sent(site: Site) -> None:
    site.fleet.add(2)
    first, second = (site.cluster.add_up(site.adding(role), site.updates(role), never) for role in (0, 1))
    total = add(first.vector, second.vector)
    assert (to_signed(total) == np.sum(site.vectors, axis=0)).all()


def test_a_round_of_a_clustered_and_a_local_helper_is_released_as_ever(site: Site) -> None:
    site.fleet.add(2)
    object.__setattr__(site.scene.cores[0].queries, "executor", site.cluster)
    released = site.scene.release(site.round, site.dataset)
    assert (released == np.sum(site.vectors, axis=0)).all()
    assert passed(site)


@pytest.mark.parametrize("at", range(1, 8))
def test_a_lost_workers_part_goes_to_the_others(site: Site, at: int) -> None:
    fails = Fails(at)
    site.fleet.add(1)
    site.fleet.add(fails=fails)
    site.assert_equal()
    site.assert_equal()
    assert len(site.fleet.joined) == 2 - (fails.calls >= at)


def test_a_head_whose_workers_are_all_lost_adds_up_itself(site: Site) -> None:
    site.assert_equal()
    site.fleet.add(2, fails=Fails())
    site.assert_equal()
    assert not site.fleet.joined
    assert len(site.fleet.ended) == 2


def test_a_round_of_one_part_is_added_up_here(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fleet.add(1)
    site.assert_equal()
    assert not passed(site)
    site.cluster.close()


def test_a_sum_that_nobody_awaits_ends_at_its_workers_too(site: Site) -> None:
    def leaves_at(call: int) -> Callable[[], None]:
        calls = iter(range(call))

        def leaves() -> None:
            if next(calls, None) is None:
                raise HelperUnavailable("the caller has gone")

        return leaves

    site.fleet.add(2)
    for call in range(4):
        with pytest.raises(HelperUnavailable):
            site.cluster.add_up(site.adding(), site.updates(), leaves_at(call))
    site.assert_equal()
    assert not site.fleet.ended


def test_shares_that_are_damaged_on_disk_are_a_lost_dataset_and_cost_no_worker(site: Site) -> None:
    site.fleet.add(2)
    vault = site.scene.cores[0].datasets.vault
    records = [one for one in vault._ledger.manifests.of(site.dataset) if not one.holds_ranks]
    for one in (records[0], records[2]):
        path = vault._disk.path(one.name)
        whole = path.read_bytes()
        path.write_bytes(whole[:120] + bytes([whole[120] ^ 1]) + whole[121:])
        with pytest.raises(JobRefused) as refused:
            site.cluster.add_up(site.adding(), site.updates(), never)
        assert refused.value.reason is JobReason.DATASET_LOST
        path.write_bytes(whole)
    assert not site.fleet.ended
    site.assert_equal()
    path.unlink()
    with pytest.raises(JobRefused) as refused:
        site.cluster.add_up(site.adding(), site.updates(), never)
    assert refused.value.reason is JobReason.DATASET_LOST


@pytest.mark.parametrize("change", [lambda one: one[:-1], lambda one: one[:-1] + bytes([one[-1] ^ 1])])
def test_shares_that_are_damaged_on_their_way_lose_no_dataset(
    site: Site, change: Callable[[bytes], bytes]
) -> None:
    site.fleet.add(2)
    worker = site.fleet.joined[b"worker 0"]
    does = worker.holder.do
    object.__setattr__(worker.holder, "do", lambda order, interrupt: does(change(order), interrupt))
    site.assert_equal()
    assert site.fleet.ended == [worker]


def test_shares_in_each_others_places_are_not_added_up(site: Site) -> None:
    site.fleet.add(1)
    first, second, *rest = site.sealed()
    swapped = [replace(first, read=second.read), replace(second, read=first.read), *rest]
    records = DatasetRecords(count=DEVICES, pieces=site.updates().pieces, sealed=lambda _: swapped)
    with pytest.raises(JobRefused) as refused:
        site.cluster.add_up(site.adding(), records, never)
    assert refused.value.reason is JobReason.DATASET_LOST


def too_short(summed: SummedUpdates) -> SummedUpdates:
    return SummedUpdates(vector=summed.vector[:-1], records=summed.records)


def too_long(summed: SummedUpdates) -> SummedUpdates:
    return SummedUpdates(vector=np.append(summed.vector, np.uint64(0)), records=summed.records)


def not_canonical(summed: SummedUpdates) -> SummedUpdates:
    vector = summed.vector.copy()
    vector[-1] = MODULUS
    return SummedUpdates(vector=vector, records=summed.records)


def of_fewer(summed: SummedUpdates) -> SummedUpdates:
    return SummedUpdates(vector=summed.vector, records=summed.records - 1)


def cannot(_: SummedUpdates) -> SummedUpdates:
    raise RuntimeError("a secret text")


@pytest.mark.parametrize("lie", [too_short, too_long, not_canonical, of_fewer, cannot])
def test_answers_that_are_no_sum_cost_two_workers_and_are_made_here(
    site: Site, monkeypatch: pytest.MonkeyPatch, lie: Callable[[SummedUpdates], SummedUpdates]
) -> None:
    monkeypatch.setattr(worker, "sum_updates", lambda *of: lie(sum_updates(*of)))
    site.fleet.add(4)
    site.assert_equal()
    assert len(site.fleet.ended) >= 2
    assert bool(site.fleet.refused) is (lie is not cannot)
    assert not [part for part in passed(site) if b"secret" in part]


def test_answers_are_of_one_length_whatever_devices_sent(site: Site) -> None:
    site.fleet.add(1)
    (worker,) = site.fleet.joined.values()
    lengths = set()
    for part in site.sealed()[:-1]:
        about = _AddingWork(site.adding(), [part], never).order([0], is_sent=True)
        lengths.add(len(worker.holder.do(write(Order(work=about.kind), [*about.parts, about.frames]))))
    assert len(lengths) == 1
