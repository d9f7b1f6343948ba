"""A cluster answers as one machine does, whoever comes, goes or stops; its workers are threads here."""

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from helper.core import HelperCore
from helper.datasets import segments
from helper.datasets.frames import SealedSegment
from helper.datasets.records import DatasetRecords
from helper.executors import dispatch, summing
from helper.executors.clustered import ClusterExecutor
from helper.executors.executor import Executor, Gradient, ModelFile, Scoring
from helper.executors.fleet import Sent
from helper.executors.local import LocalExecutor
from helper.executors.orders import Failed, write
from helper.gradient.choose import choose_engine
from helper.gradient.engine import Batch, Interrupt, PartialSum
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.scoring import Scores
from maskedlark.errors import HelperUnavailable, InvalidModel, JobReason, JobRefused, ModelReason
from maskedlark.interrupt import never
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.sample_size import work_size
from maskedlark.releases.round import Evaluated
from tests.helper.executors.clustered_site import (
    LOSS,
    RECORDS,
    SEGMENTS,
    Site,
    sampled,
    scoring_of,
)
from tests.helper.executors.in_process import Fails, ThreadFleet, ThreadWorker
from tests.helper.parties import MODEL, NO_WORKERS, Scene, make_model
from tests.helper.releases.test_evaluation_at_helpers import with_node
from tests.stores import InMemory


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    with Site(tmp_path) as made:
        yield made


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_clusters_sum_is_this_machines_bit_for_bit(site: Site, workers: int, rate: float) -> None:
    site.fleet.add(workers)
    for seed in range(3):
        site.assert_equal(rate, seed)
    assert all(site.orders())


def test_workers_keep_what_they_were_sent(site: Site) -> None:
    site.fleet.add(2)
    site.assert_equal()
    cold = site.orders()
    site.assert_equal(seed=4)
    warm = [after - before for before, after in zip(cold, site.orders(), strict=True)]
    assert warm == [2, 2]  # one order, and its answer
    assert cold in ([2 * 6, 2 * 7], [2 * 7, 2 * 6])  # one of each segment


def test_workers_with_little_room_are_sent_segments_again(site: Site) -> None:
    site.fleet.capacity_bytes = 300
    site.fleet.add(2)
    for seed in range(4):
        site.assert_equal(seed=seed)
    assert all(0 < one.holder._held._taken.total() <= 300 for one in site.fleet.joined.values())


def test_workers_come_and_go_between_rounds(site: Site) -> None:
    for count in (0, 1, 2, 1, 0, 3, 0):
        while len(site.fleet.joined) > count:
            site.fleet.drop(next(iter(site.fleet.joined)))
        site.fleet.add(count - len(site.fleet.joined))
        site.assert_equal(seed=count)


@pytest.mark.parametrize("at", range(1, 8))
def test_a_lost_workers_segments_go_to_the_others(site: Site, at: int) -> None:
    fails = Fails(at)
    site.fleet.add(2)
    site.fleet.add(fails=fails)
    site.assert_equal()
    site.assert_equal(seed=5)
    assert len(site.fleet.joined) == 3 - (fails.calls >= at)


def test_a_head_whose_workers_are_all_lost_sums_itself(site: Site) -> None:
    site.fleet.add(2, fails=Fails())
    site.assert_equal()
    assert not site.fleet.joined


def test_a_worker_that_another_round_found_lost_is_not_awaited(site: Site) -> None:
    goes_on = Event()
    site.fleet.add(1, fails=goes_on.wait)
    site.fleet.add(1, fails=lambda: site.fleet.drop(b"worker 0"))
    site.assert_equal()
    goes_on.set()


def with_ranks_read(site: Site) -> DatasetRecords:
    """The records of a dataset whose ranks need not be awaited any more."""
    sealed = site.records.sealed(never)
    return DatasetRecords(count=RECORDS, pieces=site.records.pieces, sealed=lambda _: sealed)


def test_rounds_at_once_that_are_left_are_all_ended_at_a_worker(site: Site) -> None:
    goes_on, calls = Event(), itertools.count()
    site.fleet.add(1)
    site.assert_equal()  # it holds all segments
    (worker,) = site.fleet.joined.values()
    before = len(worker.passed)

    worker.fails = goes_on.wait

    def leaves() -> None:
        if next(calls) % 2:  # not before the order, but while its answer is awaited
            raise HelperUnavailable("the caller has gone")

    for _ in range(3):
        with pytest.raises(HelperUnavailable):
            site.cluster.masked_sum(site.gradient, with_ranks_read(site), sampled(1.0), leaves)
    goes_on.set()
    site.assert_equal()
    ended = write(Failed(reason="InterruptedError"))
    assert worker.passed[before:].count(ended) == next(calls) / 2 == 3


def test_a_worker_that_cannot_do_an_order_is_let_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fleet.add(1)
    monkeypatch.setattr("helper.executors.worker.parse", lambda *_, **__: 1 // 0)
    site.assert_equal()
    assert not site.fleet.joined


def test_an_order_that_no_worker_can_do_costs_two_of_them_and_is_done_here(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.fleet.add(5)
    monkeypatch.setattr("helper.executors.worker.parse", lambda *_, **__: 1 // 0)
    site.assert_equal()
    assert len(site.fleet.ended) == 2


def test_the_head_forgets_what_workers_held_that_are_gone(site: Site) -> None:
    for seed in range(3):
        site.fleet.add(1)
        site.assert_equal(seed=seed)
        (name,) = site.fleet.joined
        assert site.cluster._dispatcher._held.keys() == {name}
        site.fleet.drop(name)  # as where its machine left Ray's list


def test_the_head_remembers_so_many_segments_of_a_worker_at_most(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_REMEMBERED", 5)
    site.fleet.add(1)
    for seed in range(3):
        site.assert_equal(seed=seed)
        (known,) = site.cluster._dispatcher._held.values()
        assert len(known) == 5


class _Counted(set[bytes]):
    """The segments that a worker is known to hold, and how often the head looked among them."""

    looks = 0

    def __contains__(self, name: object) -> bool:
        self.looks += 1
        return super().__contains__(name)


def test_a_segment_that_is_sent_is_looked_at_twice_however_many_there_are(site: Site) -> None:
    site.fleet.add(1)
    (name,) = site.fleet.joined
    known = site.cluster._dispatcher._held[name] = _Counted()
    site.assert_equal()
    assert known.looks == 2 * SEGMENTS  # where each was looked for before each order, 91


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_clusters_scores_are_this_machines(site: Site, outputs: int) -> None:
    scoring = scoring_of(outputs)
    site.fleet.add(2)

    def scores(executor: Executor) -> Scores:
        return executor.scan(scoring, site.records, never)

    local, clustered = scores(site.local), scores(site.cluster)
    assert clustered.bins.tolist() == local.bins.tolist()
    assert (clustered.choices is None) == (local.choices is None) == (outputs == 1)
    if local.choices is not None and clustered.choices is not None:
        assert clustered.choices.tolist() == local.choices.tolist()
    assert all(site.orders())


def test_a_cluster_trains_what_this_machine_trains(site: Site) -> None:
    site.fleet.add(2)
    whole, _ = site.both()
    for trained, part in {("b",): slice(4, 5), ("w",): slice(0, 4)}.items():
        model = parse(MODEL, num_features=4, trained=trained)
        clip = site.scene.task.clip
        site.gradient = Gradient(
            engine=choose_engine(model, LOSS, clip, 2),
            weights=tuple(weights.quantise(value) for value in model.initial_values),
            file=ModelFile(read=lambda: MODEL, num_features=4, trained=trained),
            loss=LOSS,
            clip=clip,
        )
        site.assert_equal()
        assert site.both()[1].vector.shape == whole.vector[part].shape


def test_an_evaluation_that_is_refused_costs_no_worker(site: Site) -> None:
    onnx = with_node(make_model(), "Exp")
    model = parse(onnx, num_features=4)
    scoring = Scoring(
        model=model,
        loss=LOSS,
        weights=tuple(weights.quantise(value) for value in model.initial_values),
        num_bins=10,
        file=ModelFile(read=lambda: onnx, num_features=4),
    )
    site.fleet.add(2)
    with pytest.raises(InvalidModel) as refused:
        site.cluster.scan(scoring, site.records, never)
    assert refused.value.reason is ModelReason.UNKNOWN_OPERATOR
    assert not site.fleet.ended


@pytest.mark.parametrize(
    "change", [lambda frames: frames[:-1], lambda frames: frames[:9] + bytes([frames[9] ^ 1]) + frames[10:]]
)
def test_a_segment_that_is_damaged_is_a_lost_dataset_and_no_wrong_sum(
    site: Site, change: Callable[[bytes], bytes]
) -> None:
    site.fleet.add(2)
    sealed = list(site.records.sealed(never))
    whole = sealed[5].read()
    sealed[5] = replace(sealed[5], read=lambda: change(whole))
    assert_lost(site, sealed)


def test_frames_that_are_damaged_on_their_way_lose_no_dataset(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.fleet.add(2)
    carried, calls = ThreadWorker.do, itertools.count()

    def carry(worker: ThreadWorker, order: bytes, **how: Any) -> Sent:
        sent = order[:-1] + bytes([order[-1] ^ 1]) if next(calls) == 3 else order  # the frames are at its end
        return carried(worker, sent, **how)

    monkeypatch.setattr(ThreadWorker, "do", carry)
    site.assert_equal()
    assert next(calls) > 4
    assert len(site.fleet.joined) == 1


def test_the_length_of_an_answer_does_not_tell_how_many_records_are_sampled(site: Site) -> None:
    for seed in range(4):
        site.fleet.add(1)  # which holds nothing: each segment is in an order of its own
        site.assert_equal(seed=seed)
        site.fleet.drop(b"worker %d" % seed)
    answers = [answer for worker in site.fleet.ended for answer in worker.passed[1::2]]
    assert len(answers) == 4 * SEGMENTS
    assert len({len(answer) for answer in answers}) == 1


def test_segments_in_each_others_places_are_a_lost_dataset(site: Site) -> None:
    site.fleet.add(2)
    sealed = list(site.records.sealed(never))
    sealed[2], sealed[3] = replace(sealed[2], read=sealed[3].read), replace(sealed[3], read=sealed[2].read)
    assert_lost(site, sealed)


def test_a_dataset_that_is_gone_since_its_ranks_were_read_is_lost(site: Site) -> None:
    site.fleet.add(2)
    sealed = list(site.records.sealed(never))
    for path in (site.scene.parties[0].data / "datasets").iterdir():
        path.unlink()
    records = DatasetRecords(count=RECORDS, pieces=site.records.pieces, sealed=lambda _: sealed)
    with pytest.raises(JobRefused) as refused:
        site.cluster.masked_sum(site.gradient, records, sampled(1.0), never)
    assert refused.value.reason is JobReason.DATASET_LOST


def test_segments_in_object_storage_go_to_workers_as_they_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    site = Site(tmp_path, InMemory())
    try:
        site.fleet.add(2)
        for seed in range(2):
            site.assert_equal(seed=seed)
        assert all(site.orders())
        sealed = list(site.records.sealed(never))
        sealed[2], sealed[3] = (
            replace(sealed[2], read=sealed[3].read),
            replace(sealed[3], read=sealed[2].read),
        )
        site.fleet.drop(b"worker 0")
        site.fleet.drop(b"worker 1")
        site.fleet.add(1)
        assert_lost(site, sealed)
    finally:
        site.cluster.close()


def assert_lost(site: Site, sealed: list[SealedSegment]) -> None:
    records = DatasetRecords(count=RECORDS, pieces=site.records.pieces, sealed=lambda _: sealed)
    with pytest.raises(JobRefused) as refused:
        site.cluster.masked_sum(site.gradient, records, sampled(1.0), never)
    assert refused.value.reason is JobReason.DATASET_LOST
    site.assert_equal()  # and the workers are still there


def test_a_round_that_nobody_awaits_ends_at_its_workers_too(site: Site) -> None:
    calls = 0

    def leaves() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise HelperUnavailable("the caller has gone")

    site.fleet.add(1)
    with pytest.raises(HelperUnavailable):
        site.cluster.masked_sum(site.gradient, with_ranks_read(site), sampled(1.0), leaves)
    assert calls == 2
    (worker,) = site.fleet.joined.values()
    assert len(worker.passed) <= 2  # its first order alone
    site.assert_equal()


def test_a_clustered_helper_agrees_with_a_local_one_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    scene = Scene(tmp_path)
    scene.restart(engine_for=choose_engine)
    spec = scene.job(scene.seal(RECORDS), sampling_numerator=1 << 31)
    scene.start(spec)
    fleet = ThreadFleet()
    fleet.add(2)
    with ClusterExecutor(fleet, LocalExecutor(NO_WORKERS)) as cluster:
        _give(scene.cores[0], cluster)
        for round_index in range(3):
            scene.run(spec, round_index)  # shares of helpers that disagree do not combine
        assert all(worker.passed for worker in fleet.joined.values())
    gc.collect()


def _give(core: HelperCore, executor: Executor) -> None:
    """Let a helper's jobs run elsewhere."""
    for kept in core.jobs._running._kept.values():
        object.__setattr__(kept.value, "executor", executor)


@pytest.mark.parametrize("records", [0, 5, 25])
def test_the_work_of_an_order_does_not_tell_how_many_of_its_records_are_sampled(
    site: Site, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    worked: list[list[int]] = []
    sums = ExactEngine.partial_sum

    def counted(
        engine: ExactEngine, tensors: Any, batches: Iterable[Batch], interrupt: Interrupt, **how: Any
    ) -> PartialSum:
        kept = list(batches)
        worked.append([len(one) for one in kept])
        return sums(engine, tensors, kept, interrupt, **how)

    monkeypatch.setattr(ExactEngine, "partial_sum", counted)
    monkeypatch.setattr(summing, "SEGMENT_RECORDS", 7)
    for seed in range(4):
        site.fleet.add(1)
        for is_cold in (True, False):
            worked.clear()
            site.cluster.masked_sum(site.gradient, site.records, some(records, seed), never)
            sizes = [4] * (SEGMENTS - 1) + [2] if is_cold else [RECORDS]  # of each order's segments together
            work = [
                work_size(expected=records * size // RECORDS, least=0, most=min(size, records), over=50)
                for size in sizes
            ]
            expected = [[7] * (size // 7) + [size % 7] * (size % 7 > 0) or [0] for size in work]
            assert sorted(worked) == sorted(expected)
        site.fleet.drop(b"worker %d" % seed)


def some(records: int, seed: int) -> Evaluated:
    """So many records of the dataset, others with each seed."""
    is_evaluated = np.zeros(RECORDS, np.bool_)
    is_evaluated[np.random.default_rng(seed).permutation(RECORDS)[:records]] = True
    return Evaluated(is_evaluated=is_evaluated, counts=is_evaluated)
