"""A dataset that has no room in memory gives the same answers as one that has, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helper.core import HelperCore
from helper.datasets import segments
from helper.datasets.fair_cache import FairCache
from helper.executors import summing
from helper.gradient.choose import choose_engine
from helper.gradient.engine import OrderFree
from helper.gradient.general.engine import GeneralEngine
from maskedlark.errors import JobReason
from maskedlark.interrupt import never
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.clip import Clip
from maskedlark.releases.round import Evaluated
from tests.helper.parties import MODEL, WEIGHTS, Scene, fake_engine_for, make_model
from tests.helper.releases.test_evaluation_at_helpers import CLASSES, histogram, spec_of
from tests.helper.releases.test_queries import Shop
from tests.refusals import refused

SEGMENT = 4


def general_engine_for(model: Model, loss: Loss, clip: Clip, num_classes: int | None) -> GeneralEngine:
    return GeneralEngine(model, loss, clip, num_classes)


def without_room(core: HelperCore) -> None:
    """Let a helper keep no dataset in memory."""
    object.__setattr__(core.datasets, "kept", FairCache(0))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)


@pytest.mark.parametrize("batch", [1, 7, 1_000])
@pytest.mark.parametrize("sampling", [1 << 32, 1 << 31])
@pytest.mark.parametrize("engine", [fake_engine_for, choose_engine, general_engine_for])
def test_a_round_over_segments_is_the_round_over_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Callable[..., Any], sampling: int, batch: int
) -> None:
    monkeypatch.setattr(summing, "SEGMENT_RECORDS", batch)
    scene = Scene(tmp_path)
    scene.restart(engine_for=engine)
    spec = scene.job(scene.seal(50), sampling_numerator=sampling)
    scene.start(spec)
    without_room(scene.cores[0])
    assert len(list(scene.cores[0].datasets.pieces(spec.dataset_id))) == 13
    both = scene.run(spec, 0)  # helper 0 by segments, helper 1 from memory: their digests agree
    without_room(scene.cores[1])
    if sampling == 1 << 32 and engine is fake_engine_for:
        assert both.tolist() == scene.plain_sum(50)
    scene.run(spec, 1)


def test_a_helper_that_keeps_nothing_in_memory_gives_the_bytes_of_one_that_does(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.restart(engine_for=choose_engine)
    spec = scene.job(scene.seal(50), sampling_numerator=1 << 31)
    scene.start(spec)
    datasets, model = scene.cores[0].datasets, parse(MODEL, num_features=4)
    engine = choose_engine(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, scene.task.clip, 2)
    assert isinstance(engine, OrderFree)
    draw = np.random.default_rng(5)
    chosen = Evaluated(is_evaluated=draw.random(50) < 0.7, counts=draw.random(50) < 0.5)

    def sums() -> tuple[bytes, bytes]:
        tensors = weights.decode(WEIGHTS, model.parameters)
        made = summing.sum_batches(engine, tensors, datasets.pieces(spec.dataset_id), chosen, never)
        return made.vector.tobytes(), made.values_digest

    whole = sums()
    without_room(scene.cores[0])
    assert sums() == whole


def test_a_round_of_no_evaluated_record_gives_zeros(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    dataset = scene.seal(10)
    without_room(scene.cores[0])
    nobody = Evaluated(is_evaluated=np.zeros(10, np.bool_), counts=np.zeros(10, np.bool_))
    model = parse(MODEL, num_features=4)
    for make in (fake_engine_for, choose_engine, general_engine_for):
        made = summing.sum_batches(
            make(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, scene.task.clip, 2),
            weights.decode(WEIGHTS, model.parameters),
            scene.cores[0].datasets.pieces(dataset),
            nobody,
            never,
        )
        assert not made.vector.any()
        assert len(made.vector) == model.num_parameters


@pytest.mark.parametrize("batch", [3, 5, 11])
def test_batches_do_not_show_which_records_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(summing, "SEGMENT_RECORDS", batch)
    scene = Scene(tmp_path)
    datasets, dataset = scene.cores[0].datasets, scene.seal(40)
    without_room(scene.cores[0])
    draw = np.random.default_rng(7)

    def lengths() -> list[int]:
        chosen = np.zeros(40, np.bool_)
        chosen[draw.permutation(40)[:20]] = True
        evaluated = Evaluated(is_evaluated=chosen, counts=chosen)
        return [len(one) for one in summing._batches(datasets.pieces(dataset), evaluated, never)]

    expected = [batch] * (20 // batch) + [20 % batch] * (20 % batch > 0)
    assert all(lengths() == expected for _ in range(20))


def test_a_segment_that_is_damaged_is_a_refusal_and_charges_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.restart(engine_for=choose_engine)
    spec = scene.job(scene.seal(50))
    scene.start(spec)
    without_room(scene.cores[0])
    records, *_ = scene.cores[0].tasks._ledger.manifests.of(spec.dataset_id)
    path = scene.cores[0].datasets.vault._disk.path(records.name)
    stored = path.read_bytes()
    middle = len(stored) // 2
    path.write_bytes(stored[:middle] + bytes([stored[middle] ^ 1]) + stored[middle + 1 :])
    with refused(JobReason.DATASET_LOST):
        scene.answer(0, spec, 0)
    assert scene.cores[0].status().counts.rounds_answered == 0
    path.write_bytes(stored)
    scene.run(spec, 0)


def test_a_query_over_segments_is_the_query_over_the_whole(tmp_path: Path) -> None:
    whole, shop = Shop(tmp_path / "whole"), Shop(tmp_path / "segments")
    expected = whole.total(whole.query())
    without_room(shop.cores[0])
    assert shop.cores[0].datasets.labels(shop.dataset).features.shape == (30, 0)
    assert shop.total(shop.query()) == expected  # and the helpers' digests of cells agree
    assert any(expected)


@pytest.mark.parametrize("classes", [2, 3])
def test_an_evaluation_over_segments_is_the_evaluation_over_the_whole(tmp_path: Path, classes: int) -> None:
    onnx = make_model() if classes == 2 else dense_network([4, 3], "relu", seed=3)
    changes = {} if classes == 2 else {"labels": CLASSES, "num_decoys": 2}
    totals = []
    for place in ("whole", "segments"):
        scene = Scene(tmp_path / place, **changes)
        dataset = scene.seal(60)
        if place == "segments":
            without_room(scene.cores[1])
        totals.append(histogram(scene, spec_of(scene, dataset, onnx), onnx))
    assert (totals[0] == totals[1]).all()
    assert totals[0].any()
