"""Evaluations at real helper cores: what is counted, what is charged, and what is refused."""

from dataclasses import replace
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto
from onnx import helper as make

from helper.gradient.exact.forward import ForwardPass
from helper.gradient.scoring import _edge_logits, score
from maskedlark.errors import JobReason, ModelReason
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import add, from_signed, to_signed
from maskedlark.numbers.field import share as split
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.evaluation import (
    MAX_BINS,
    SENSITIVITY,
    UNITS,
    EvaluationSpec,
    answer_evaluation,
    loss_to_evaluate,
)
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.report import Example
from tests.builders import world
from tests.helper.parties import ASKED, Scene, make_model
from tests.maskedlark.query_specs import evaluation
from tests.refusals import refused

CLASSES = {"kind": "classes", "size": 3, "default_label": 0}


def spec_of(scene: Scene, dataset: bytes, onnx: bytes, **changes: Any) -> EvaluationSpec:
    model = parse(onnx, num_features=scene.task.num_features)
    held = weights.encode([weights.quantise(values) for values in model.initial_values])
    named = {"dataset_id": dataset, "model_digest": model.digest, "weights_digest": weights.digest(held)}
    return replace(evaluation(scene, **named, num_bins=20), **changes)


def asked(scene: Scene, role: int, spec: EvaluationSpec, onnx: bytes) -> AggregateShare:
    answered = scene.cores[role].queries.answer(spec, lambda _: onnx, ASKED)
    return AggregateShare.decode(answered.answer, spec.num_numbers)


def histogram(scene: Scene, spec: EvaluationSpec, onnx: bytes) -> NDArray[np.int64]:
    """(2, num_bins) in units."""
    return combine(asked(scene, 0, spec, onnx), asked(scene, 1, spec, onnx)).reshape(2, spec.num_bins)


def logits(onnx: bytes, examples: list[Example]) -> NDArray[np.float64]:
    """The same dense network in plain float64."""
    features = np.stack([example.features for example in examples]) / 256.0
    weight, bias = (
        weights.quantise(values).to_float()
        for values in parse(onnx, num_features=features.shape[1]).initial_values
    )
    return features @ (weight if weight.shape[0] == features.shape[1] else weight.T) + bias


def labels_of(examples: list[Example]) -> NDArray[np.int64]:
    return np.array([int(example.label or 0) for example in examples])


@pytest.mark.parametrize("has_sigmoid", [False, True])
def test_both_helpers_together_count_every_real_label_in_the_bin_of_its_score(
    tmp_path: Path, has_sigmoid: bool
) -> None:
    onnx = with_sigmoid(make_model()) if has_sigmoid else make_model()
    scene = Scene(tmp_path)
    made = scene.examples(60)
    total = histogram(scene, spec_of(scene, scene.seal(made), onnx), onnx)
    probabilities = 1 / (1 + np.exp(-logits(make_model(), made)[:, 0]))
    expected = np.zeros((2, 20), np.int64)
    np.add.at(expected, (labels_of(made), np.floor(20 * probabilities).astype(int)), UNITS)
    assert expected.any(axis=0).sum() > 1
    assert (total == expected).all()


def test_of_several_classes_it_counts_whether_the_first_choice_is_right_by_confidence(tmp_path: Path) -> None:
    onnx = dense_network([4, 3], "relu", seed=3)
    scene = Scene(tmp_path, labels=CLASSES, num_decoys=2)
    made = scene.examples(60)
    total = histogram(scene, spec_of(scene, scene.seal(made), onnx), onnx)
    raised = np.exp(logits(onnx, made))
    chosen, confidence = raised.argmax(1), raised.max(1) / raised.sum(1)
    expected = np.zeros((2, 20), np.int64)
    np.add.at(
        expected, ((chosen == labels_of(made)).astype(int), np.floor(20 * confidence).astype(int)), UNITS
    )
    assert (total == expected).all()


@pytest.mark.parametrize("name", ["click", "sale"])
def test_of_several_heads_one_is_counted_and_codes_that_say_nothing_are_not(
    tmp_path: Path, name: str
) -> None:
    onnx = dense_network([4, 2], "relu", seed=3)
    output = parse(onnx, num_features=4).outputs[0][0]
    heads = Heads.of(
        [
            {"name": "click", "output": f"{output}[0]", "targets": [0, 1, 1]},
            {"name": "sale", "output": f"{output}[1]", "targets": [None, 0, 1]},
        ]
    )
    head = heads.find_head(name)
    scene = Scene(tmp_path, labels=CLASSES, num_decoys=2)
    made = scene.examples(60)
    total = histogram(scene, spec_of(scene, scene.seal(made), onnx, head=head), onnx)
    probabilities = 1 / (1 + np.exp(-logits(onnx, made)[:, int(name == "sale")]))
    expected = np.zeros((2, 20), np.int64)
    for label, probability in zip(labels_of(made), probabilities, strict=True):
        target = head.targets[label]
        if target is not None:
            expected[int(target > 0), int(20 * probability)] += UNITS
    assert (total == expected).all()
    assert total.sum() == UNITS * (60 if name == "click" else (labels_of(made) > 0).sum())


def test_a_head_that_does_not_fit_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    onnx = dense_network([4, 2], "relu", seed=3)
    scene = Scene(tmp_path, labels=CLASSES, num_decoys=2)
    dataset = scene.seal(60)
    for settings in (
        {"output": "absent", "targets": [0, 1, 1]},
        {"output": "y[0]", "targets": [0, 1]},
        {"output": "y[0]", "targets": [0, 1, 2], "loss": "mse"},
    ):
        name = parse(onnx, num_features=4).outputs[0][0]
        named = {**settings, "output": str(settings["output"]).replace("y[", f"{name}[")}
        spec = spec_of(scene, dataset, onnx, head=Heads.of([named]).heads[0])
        with refused(ModelReason.WRONG_LOSS):
            asked(scene, 0, spec, onnx)


def test_one_answer_alone_tells_nothing_of_the_histogram(tmp_path: Path) -> None:
    scene, onnx = Scene(tmp_path), make_model()
    share = asked(scene, 0, spec_of(scene, scene.seal(60), onnx), onnx).vector
    assert len(set(share.tolist())) == 40
    assert (share > 2**32).mean() > 0.9


def test_fewer_reports_than_min_batch_size_count_as_none(tmp_path: Path) -> None:
    scene, onnx = Scene(tmp_path, min_batch_size=30), make_model()
    assert not histogram(scene, spec_of(scene, scene.seal(29), onnx), onnx).any()


def test_an_evaluation_asked_again_gives_the_same_bytes_without_the_model_and_is_charged_once(
    tmp_path: Path,
) -> None:
    scene, onnx = Scene(tmp_path, mechanism="gaussian"), make_model()
    spec = spec_of(scene, scene.seal(40), onnx, noise_multiplier=3.0)
    first = scene.cores[0].queries.answer(spec, lambda _: onnx, ASKED)

    def unread(_: int) -> bytes:
        raise AssertionError("read again")

    assert scene.cores[0].queries.answer(spec, unread, ASKED) == first
    assert first.spent.ad_server > 0


def test_what_is_charged_is_one_release_of_all_records(tmp_path: Path) -> None:
    scene, onnx = Scene(tmp_path, mechanism="laplace", norm="l1"), make_model()
    spec = spec_of(scene, scene.seal(40), onnx, noise_multiplier=2.0)
    assert scene.cores[0].queries.answer(spec, lambda _: onnx, ASKED).spent.colluding == pytest.approx(
        0.5, rel=1e-3
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_bins": MAX_BINS + 1}, JobReason.DOMAIN_TOO_LARGE),
        ({"noise_multiplier": 0.01}, JobReason.BUDGET_EXHAUSTED),
        ({"noise_multiplier": 0.0}, JobReason.NOISE_OUT_OF_RANGE),
        ({"model_digest": bytes(32)}, JobReason.MALFORMED),
        ({"weights_digest": bytes(32)}, JobReason.MALFORMED),
        ({"dataset_id": bytes(32)}, JobReason.UNKNOWN_DATASET),
    ],
)
def test_what_cannot_be_answered_is_refused_and_charged_nothing(
    tmp_path: Path, changes: dict[str, Any], reason: JobReason
) -> None:
    scene, onnx = Scene(tmp_path, mechanism="gaussian"), make_model()
    dataset = scene.seal(40)
    with refused(reason):
        asked(scene, 0, spec_of(scene, dataset, onnx, **{"noise_multiplier": 3.0, **changes}), onnx)
    assert scene.cores[0].queries.answer(
        spec_of(scene, dataset, onnx, noise_multiplier=9.0), lambda _: onnx, ASKED
    )


def test_an_evaluation_of_another_content_under_the_same_id_is_refused(tmp_path: Path) -> None:
    scene, onnx = Scene(tmp_path), make_model()
    spec = spec_of(scene, scene.seal(40), onnx)
    asked(scene, 0, spec, onnx)
    with refused(JobReason.QUERY_CHANGED):
        asked(scene, 0, replace(spec, num_bins=22), onnx)


@pytest.mark.parametrize(
    ("task", "onnx"),
    [
        ({"labels": CLASSES}, make_model()),
        ({"labels": CLASSES}, make_model(outputs=2)),
        ({"labels": {"kind": "values", "size": 9, "num_buckets": 4}}, make_model()),
    ],
)
def test_a_model_of_other_outputs_than_the_tasks_labels_is_refused(
    tmp_path: Path, task: dict[str, Any], onnx: bytes
) -> None:
    scene = Scene(tmp_path, **task)
    with refused(ModelReason.WRONG_LOSS):
        asked(scene, 0, spec_of(scene, scene.seal(20), onnx), onnx)


def test_a_model_without_an_exact_form_is_refused(tmp_path: Path) -> None:
    scene, onnx = Scene(tmp_path), with_node(make_model(), "Exp")
    with refused(ModelReason.UNKNOWN_OPERATOR):
        asked(scene, 0, spec_of(scene, scene.seal(20), onnx), onnx)


@given(
    seed=st.integers(0, 10**6),
    records=st.integers(2, 12),
    classes=st.sampled_from([None, 3, 5]),
    bins=st.sampled_from([2, 7, 50]),
)
def test_one_report_changes_the_histogram_by_at_most_the_sensitivity(
    seed: int, records: int, classes: int | None, bins: int
) -> None:
    of = PLAIN if classes is None else MANY[classes]
    rng = np.random.default_rng(seed)
    places, choices = (
        rng.integers(0, bins, records),
        None if classes is None else rng.integers(0, classes, records),
    )
    candidates = classes or 2
    labels = np.stack([rng.permutation(candidates) for _ in range(records)]).astype(np.uint32)
    masks = (np.arange(candidates) == 0) * rng.integers(0, 2, records)[:, None]
    silent = masks.copy()
    silent[rng.integers(0, records)] = 0

    def summed(held: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.zeros(2 * bins, np.uint64)
        for role, part in enumerate(split(from_signed(held.reshape(-1)), seeded(seed, "masks"))):
            shares = InputShares(
                features=np.zeros((records, 4), np.uint8), labels=labels, mask_shares=part.reshape(held.shape)
            )
            answer = answer_evaluation(
                task=of.task,
                spec=evaluation(of, num_bins=bins),
                pair=of.pair(role),
                shares=shares,
                bins=places,
                choices=choices,
                noise=partial(noise_vector, randomness=seeded(0, "none")),
            )
            total = add(total, answer.vector)
        return to_signed(total)

    change = summed(masks) - summed(silent)
    assert np.abs(change).sum() in (0, SENSITIVITY)  # so its L2 norm is at most that, too
    assert summed(masks).sum() == UNITS * masks.sum()


PLAIN = world()
MANY = {size: world(labels={"kind": "classes", "size": size}, num_decoys=size - 1) for size in (3, 5)}


@given(bins=st.integers(2, 300))
def test_edges_are_the_doubles_nearest_to_the_logits(bins: int) -> None:
    edges = _edge_logits(bins)
    assert len(edges) == bins - 1
    assert (np.diff(edges) > 0).all()
    assert (edges == -edges[::-1]).all()
    with localcontext(prec=60):
        for k in {1, bins // 3 or 1, bins - 1}:
            exact = (Decimal(k) / Decimal(bins - k)).ln()
            nearby = [
                float(edges[k - 1]),
                *(float(np.nextafter(edges[k - 1], side)) for side in (-np.inf, np.inf)),
            ]
            assert min(nearby, key=lambda near: abs(Decimal(near) - exact)) == edges[k - 1]


def test_outputs_depend_on_no_block_and_are_the_models() -> None:
    onnx = dense_network([4, 6, 1], "tanh", seed=5)
    model = parse(onnx, num_features=4)
    features = np.frombuffer(seeded(1, "features")(4 * 1_500), np.uint8).reshape(-1, 4)
    held = tuple(weights.quantise(values) for values in model.initial_values)
    forward = ForwardPass(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    whole = forward.outputs(held, features)
    assert (
        np.concatenate([forward.outputs(held, features[:7]), forward.outputs(held, features[7:])]) == whole
    ).all()
    first, first_bias, second, second_bias = (tensor.to_float() for tensor in held)
    plain = np.tanh(features / 256 @ oriented(first, 4) + first_bias) @ oriented(second, 6) + second_bias
    assert np.abs(whole - plain).max() < 1e-3


def test_a_score_beyond_every_edge_is_in_the_highest_bin() -> None:
    model = parse(make_model(), num_features=4)
    huge = tuple(
        replace(weights.quantise(values), exponent=weights.MIN_EXPONENT) for values in model.initial_values
    )
    scored = score(model, loss_to_evaluate(PLAIN.task, model), huge, np.full((3, 4), 255, np.uint8), 10)
    assert scored.bins.tolist() == [9, 9, 9]


def oriented(weight: NDArray[np.float64], inputs: int) -> NDArray[np.float64]:
    return weight if weight.shape[0] == inputs else weight.T


def with_sigmoid(onnx_model: bytes) -> bytes:
    return with_node(onnx_model, "Sigmoid")


def with_node(onnx_model: bytes, operator: str) -> bytes:
    """The model with one more operator at its end."""
    import onnx

    loaded = onnx.load_from_string(onnx_model)
    del loaded.graph.output[:]
    loaded.graph.node.append(make.make_node(operator, ["z"], ["p"]))
    loaded.graph.output.append(make.make_tensor_value_info("p", TensorProto.FLOAT, ("n", 1)))
    result: bytes = loaded.SerializeToString()
    return result
