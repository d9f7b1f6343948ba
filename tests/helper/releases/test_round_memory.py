"""Memory is bounded like time: an estimate, a limit before anything is computed, and one quota for all."""

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from helper.gradient.exact import engine as exact_engine
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.memory import records_within
from helper.gradient.general.engine import GeneralEngine
from helper.gradient.scoring import score, scoring_bytes
from helper.ledger.records import key_of
from helper.releases.answering import Call
from helper.releases.jobs import _held_bytes
from helper.releases.round_cost import round_cost
from helper.releases.rounds import Computation
from helper.releases.work_quota import WorkQuota
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.model import weights as weights_format
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import random_vector
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded
from maskedlark.releases.job import JobSpec
from maskedlark.reports.input_shares import InputShares
from maskedlark.runtime.memory import memory_limit
from tests.bench.round_memory import convolutional
from tests.helper.parties import ASKED, FLOORS, MODEL, WEIGHTS, Scene
from tests.onnx_builders import encoded, node, tensor, weights
from tests.patience import HANGS_S
from tests.refusals import refused

CLIP = Clip(norm=Norm.L2, bound=1.0, frac_bits=16)
LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
SIDE = 16


def small_file() -> bytes:
    """A 1x1 convolution to 512 channels: some kilobytes that write a hundred thousand numbers a record."""
    return convolutional(SIDE, [(512, 1)], (), 1)


def batch(records: int, width: int, labels: int = 2) -> InputShares:
    rng = np.random.default_rng(7)
    return InputShares(
        features=rng.integers(0, 256, (records, width)).astype(np.uint8),
        labels=np.tile(np.arange(labels, dtype=np.uint32), (records, 1)),
        mask_shares=random_vector(records * labels, seeded(3)).reshape(records, labels),
    )


def test_a_small_file_whose_rounds_fill_the_memory_is_refused_before_it_costs_anything(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, num_features=SIDE * SIDE)
    dataset = scene.seal(20)
    scene.parties[0].floors = replace(FLOORS, max_round_bytes=24 << 20)
    scene.restart(engine_for=choose_engine)
    onnx = small_file()
    assert len(onnx) < 8_192
    digest = parse(onnx, num_features=SIDE * SIDE).digest
    spec = scene_job(scene, dataset, digest)
    with refused(JobReason.TOO_LARGE, r"about \d+ MiB .* 24 \(--max-round-bytes\)"):
        scene.cores[0].jobs.start(canonical.encode(spec), onnx, ASKED)
    assert scene.cores[0].counts().open_jobs == 0
    assert scene.cores[1].jobs.start(canonical.encode(spec), onnx, ASKED).path == "exact"


def scene_job(scene: Scene, dataset: bytes, digest: bytes) -> JobSpec:
    return JobSpec(
        job_id=b"j" * 16, task_id=scene.task_id, dataset_id=dataset, model_digest=digest, loss=LOGITS,
        rounds=1, sampling_numerator=1 << 32, noise_multiplier=0.0,
    )  # fmt: skip


def test_a_round_is_refused_uncharged_where_the_limit_was_lowered_since_its_job_began(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.parties[0].floors = replace(FLOORS, max_round_bytes=1)
    scene.restart()
    with refused(JobReason.TOO_LARGE, "max-round-bytes"):
        scene.answer(0, spec, 0)
    assert scene.cores[0].counts().rounds_answered == 0


def test_blocks_go_down_to_one_record_and_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(small_file(), num_features=SIDE * SIDE)
    tensors = tuple(weights_format.quantise(values) for values in model.initial_values)
    records, engine = batch(9, SIDE * SIDE), ExactEngine(model, LOGITS, CLIP)
    before = engine.masked_sum(tensors, records)
    whole = engine.round_bytes(9, 2)
    monkeypatch.setattr(exact_engine, "_MOST_BLOCK_BYTES", 1)
    monkeypatch.setattr(exact_engine, "_MOST_CHUNK_BYTES", 1)
    one = ExactEngine(model, LOGITS, CLIP)
    assert one.round_bytes(9, 2) < whole / 5
    assert one.round_bytes(9, 2) == one.round_bytes(1, 2)
    after = one.masked_sum(tensors, records)
    assert after.vector.tolist() == before.vector.tolist()
    assert after.values_digest == before.values_digest


def test_a_round_of_large_records_takes_no_more_than_a_block_of_them() -> None:
    model = parse(convolutional(64, [(512, 1)], (), 1), num_features=64 * 64)
    engine = ExactEngine(model, LOGITS, CLIP)
    assert engine.round_bytes(20, 2) < 1.1 * engine.round_bytes(1, 2)
    assert 64 << 20 < engine.round_bytes(20, 2) < 256 << 20  # 2.1 million values


def test_the_general_path_counts_candidates_and_keeps_to_its_chunk() -> None:
    model = parse(MODEL, num_features=4)
    few, many = (GeneralEngine(model, LOGITS, CLIP, 2).round_bytes(512, labels) for labels in (1, 8))
    assert many > 3 * few
    assert GeneralEngine(model, LOGITS, CLIP, 2).round_bytes(1 << 20, 8) == many


def test_every_number_that_counts_makes_the_estimate_grow() -> None:
    def estimate(channels: int = 32, records: int = 8, candidates: int = 2) -> int:
        model = parse(convolutional(SIDE, [(channels, 3)], ("MaxPool",), 4), num_features=SIDE * SIDE)
        engine = ExactEngine(model, Loss.CROSS_ENTROPY, CLIP)
        return round_cost(model, engine, records=records, candidates=candidates).num_bytes

    assert estimate() < estimate(channels=64)
    assert estimate() < estimate(records=16)
    assert estimate() < estimate(candidates=4)


def test_buffers_are_freed_with_their_last_reference() -> None:
    """Cycles wait for the garbage collector, which looks seldom in a server: a round kept all its arrays."""
    from gc import disable, enable
    from weakref import ref

    disable()
    try:
        buffers = Buffers()
        array = ref(buffers.part("layer").empty("values", (1_000,)).base)
        assert array() is not None
        assert buffers.num_bytes == 8_000
        del buffers
        assert array() is None
    finally:
        enable()


@contextmanager
def held(quota: WorkQuota, caller: str, num_bytes: int) -> Iterator[None]:
    """A round that another thread holds for the block."""
    began, over = Event(), Event()

    def run() -> None:
        with quota.taken(caller, num_bytes):
            began.set()
            assert over.wait(HANGS_S)

    thread = Thread(target=run)
    thread.start()
    assert began.wait(HANGS_S)
    try:
        yield
    finally:
        over.set()
        thread.join(HANGS_S)


def test_calls_of_one_tenant_at_once_take_no_more_than_one_large_round() -> None:
    quota = WorkQuota(600, at_once=4)
    with held(quota, "evil", 300), held(quota, "evil", 300):
        for _ in range(4):
            with pytest.raises(HelperUnavailable, match="max-round-bytes") as refused, quota.taken("evil", 1):
                pass
            assert refused.value.retry_after_s == 1.0
        with quota.taken("ads.example", 600):
            pass
    with quota.taken("evil", 600):
        pass


def test_calls_of_one_tenant_at_once_compute_on_half_of_the_cores_and_others_wait() -> None:
    assert WorkQuota(600)._at_once == max(1, (os.cpu_count() or 1) // 2)
    quota, waited = WorkQuota(600, at_once=1), Event()

    def gone() -> None:
        waited.set()
        raise JobRefused(JobReason.CANCELLED, "gone")

    with held(quota, "evil", 1):
        with pytest.raises(JobRefused, match="gone"), quota.taken("evil", 1, gone):
            pass
        assert waited.is_set()
        with quota.taken("ads.example", 1):
            pass
    with quota.taken("evil", 1):
        pass
    assert not quota._computing


def test_a_call_that_waits_for_its_callers_other_work_computes_after_it() -> None:
    quota, waits, over = WorkQuota(600, at_once=1), Event(), Event()
    order: list[str] = []

    def second() -> None:
        with quota.taken("ads.example", 600, waits.set):
            order.append("second")
        over.set()

    with quota.taken("ads.example", 600):
        thread = Thread(target=second)
        thread.start()
        assert waits.wait(HANGS_S)
        order.append("first")
    assert over.wait(HANGS_S)
    thread.join(HANGS_S)
    assert order == ["first", "second"]


def test_a_round_without_room_is_no_look_and_is_answered_later(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    spec = scene.job(scene.seal())
    scene.start(spec)
    running = scene.cores[0].jobs.at_work(key_of(spec), None)
    names = frozenset({"ads.example"})
    quota = running.running.quota
    with (
        quota.taken("one", FLOORS.max_round_bytes),
        quota.taken("another", FLOORS.max_round_bytes),
        pytest.raises(HelperUnavailable),
    ):
        running.answer(0, WEIGHTS, Call(caller=names))
    assert not running.running.attempts._begun
    assert running.answer(0, WEIGHTS, Call(caller=names))


def test_scoring_counts_its_blocks_and_their_size_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(small_file(), num_features=SIDE * SIDE)
    tensors = tuple(weights_format.quantise(values) for values in model.initial_values)
    features = batch(9, SIDE * SIDE).features
    whole, taken = score(model, LOGITS, tensors, features, 50), scoring_bytes(model, LOGITS)
    monkeypatch.setattr("helper.gradient.exact.forward._MOST_BLOCK_BYTES", 1)
    assert scoring_bytes(model, LOGITS) < taken / 4
    assert score(model, LOGITS, tensors, features, 50).bins.tolist() == whole.bins.tolist()


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/system.slice/helper.service\n")
    machine = memory_limit(tmp_path / "groups", own)
    folder = tmp_path / "groups" / "system.slice" / "helper.service"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path / "groups", own) == machine
    (folder.parent / "memory.max").write_text("1048576\n")
    assert memory_limit(tmp_path / "groups", own) == 1 << 20


def test_windows_as_large_as_the_image_are_counted_before_they_are_listed() -> None:
    side = 256
    nodes = [
        node("Reshape", ["x", "image"], ["i"]),
        node("MaxPool", ["i"], ["p"], kernel_shape=[side // 2, side // 2]),
        node("Reshape", ["p", "flat"], ["v"]),
        node("Gemm", ["v", "w", "b"], ["y"]),
    ]
    places = (side // 2 + 1) ** 2
    held = [
        tensor("image", [-1, 1, side, side], np.int64), tensor("flat", [0, -1], np.int64),
        weights("w", places, 1), weights("b", 1),
    ]  # fmt: skip
    model = parse(encoded(nodes, held, width=side * side), num_features=side * side)
    tracemalloc.start()
    with pytest.raises(NotExact, match="places"):
        ExactEngine(model, LOGITS, CLIP)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_what_a_job_keeps_between_rounds_counts_its_graph_its_arrays_and_its_engine() -> None:
    def bytes_with(*, values: int = 0, constants: int = 0, nodes: int = 0, held: int = 0) -> int:
        model = SimpleNamespace(
            initial_values=(np.zeros(values, np.uint8),),
            constants={"c": np.zeros(constants, np.uint8)},
            nodes=(None,) * nodes,
        )
        engine = SimpleNamespace(held_bytes=held)
        return _held_bytes(cast("Computation", SimpleNamespace(model=model, engine=engine)))

    nothing = 1 << 20
    assert bytes_with() == nothing
    assert bytes_with(values=1_000, constants=300, held=700) == nothing + 2_000
    assert bytes_with(nodes=3) == nothing + 3 * 8_192


@pytest.mark.parametrize(
    ("limit", "a_record", "most", "records"),
    [(100, 10, 50, 10), (109, 10, 50, 10), (100, 10, 3, 3), (5, 10, 3, 1), (5, 0, 3, 3)],
)
def test_a_block_holds_as_many_records_as_a_limit_and_no_more_than_there_are(
    limit: int, a_record: int, most: int, records: int
) -> None:
    assert records_within(limit, a_record, most) == records
