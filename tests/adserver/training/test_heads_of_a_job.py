"""Heads from a person's list to a stored job: over the wire, checked before anything is spent, measured."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

from adserver.cli.heads import read_loss
from adserver.messages.plan import PlanJob
from adserver.messages.submission import SubmitJob
from adserver.records.exported_model import ExportedModel
from adserver.records.plans import read_plan
from adserver.records.scored_loss import class_weights, scored_loss
from adserver.records.submissions import PlanConstraints, PlanRequest
from adserver.training.calibration import calibrate_by_histogram, calibrate_by_panel
from adserver.training.eval_set import read_eval_set
from adserver.training.inference import evaluate, evaluate_heads, predict
from adserver.training.model_file import check_loss_fits
from adserver.training.rehearsal_training import score_model
from adserver.training.submission import plan_job
from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.releases.job import JobSpec
from tests.adserver.job_world import NUM_FEATURES
from tests.adserver.training.test_submission import JOB_ID, SUBMISSION, dataset_of, npz_of, task_of
from tests.builders import NOW

ENCODED = dense_network([NUM_FEATURES, 4, 2], "relu", seed=2)
OUTPUT = onnx.ModelProto.FromString(ENCODED).graph.output[0].name
LISTED: list[dict[str, Any]] = [
    {"name": "click", "output": f"{OUTPUT}[0]", "targets": [0, 1, 1]},
    {"name": "sale", "output": f"{OUTPUT}[1]", "targets": [None, 0, 1], "weights": [1, 1, 2.5]},
]
HEADS = Heads.of(LISTED)
TASK = task_of(mechanism="none", labels={"kind": "classes", "size": 3, "default_label": 0}, num_decoys=2)
ASKED = replace(SUBMISSION, model=ENCODED, loss=HEADS, epsilon=None, eval_set=None)


def planned(**changes: Any) -> Any:
    asked = replace(ASKED, **changes)
    return plan_job(asked, task=TASK, dataset=dataset_of(TASK), job_id=JOB_ID, now_s=NOW)


def test_heads_travel_and_are_stored_as_they_were_asked() -> None:
    assert SubmitJob.model_validate_json(SubmitJob.of(ASKED).model_dump_json()).value() == ASKED
    wish = PlanConstraints(rounds=3, batch_size=None, noise_multiplier=None)
    request = PlanRequest(model=ENCODED, wish=wish, loss=HEADS)
    assert PlanJob.model_validate_json(PlanJob.of(request).model_dump_json()).value() == request
    plan = planned()
    assert plan.job.loss == HEADS
    assert decode(JobSpec, encode(plan.job)) == plan.job
    assert read_plan(encode(plan)) == plan
    assert plan.job.loss.value == (
        "click: binary_cross_entropy_with_logits, sale: binary_cross_entropy_with_logits"
    )


def test_a_head_over_the_wire_may_leave_out_the_only_output_as_in_python() -> None:
    sent = {**SubmitJob.of(ASKED).model_dump(mode="json"), "loss": [{"targets": [0, 1, 1]}]}
    with pytest.raises(InvalidTask, match=r"heads\[0\] lacks 'output'"):
        PlanJob.model_validate_json(json.dumps({"num_parameters": 3, "loss": sent["loss"]})).value()
    for one in (
        SubmitJob.model_validate_json(json.dumps(sent)),
        PlanJob.model_validate_json(json.dumps({"model": sent["model"], "loss": sent["loss"]})),
    ):
        loss = one.value().loss
        assert isinstance(loss, Heads)
        assert loss == Heads.of([{"targets": [0, 1, 1], "output": OUTPUT}])


def test_the_bytes_of_a_job_of_one_loss_do_not_know_of_heads() -> None:
    task = task_of(mechanism="none")
    asked = replace(SUBMISSION, epsilon=None)
    plan = plan_job(asked, task=task, dataset=dataset_of(task), job_id=JOB_ID, now_s=NOW)
    assert json.loads(encode(plan.job))["loss"] == "binary_cross_entropy_with_logits"
    assert b"heads" not in encode(plan.job)


@pytest.mark.parametrize(
    ("heads", "why"),
    [
        ([LISTED[0], {**LISTED[1], "targets": [0, 1], "weights": [1, 1]}], "2 label codes, the task has 3"),
        ([LISTED[0], {**LISTED[1], "output": "absent"}], "reads the output 'absent'"),
        ([{**LISTED[0], "output": OUTPUT}], "needs an output of one column"),
    ],
)
def test_heads_that_do_not_fit_are_refused_before_anything_is_stored(
    heads: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(InvalidModel, match=why) as refused:
        planned(loss=Heads.of(heads))
    assert refused.value.reason is ModelReason.WRONG_LOSS


def test_an_evaluation_set_holds_codes() -> None:
    planned(eval_set=npz_of(labels=np.array([0, 1, 2])))
    with pytest.raises(JobRefused, match=r"classes 0\.\.2"):
        planned(eval_set=npz_of(labels=np.array([0, 1, 3])))


def test_losses_of_heads_are_those_of_each_head_and_their_weighted_sum() -> None:
    rng = np.random.default_rng(1)
    features = rng.integers(0, 256, (40, NUM_FEATURES), dtype=np.uint8)
    labels = rng.integers(0, 3, 40)
    z = predict(ENCODED, features).astype(np.float64)
    each = evaluate_heads(ENCODED, features, labels, HEADS)
    click = np.logaddexp(0, z[:, 0]) - (labels > 0) * z[:, 0]
    clicked = labels > 0
    sale = (np.logaddexp(0, z[:, 1]) - (labels == 2) * z[:, 1])[clicked]
    assert each["click"].loss == pytest.approx(click.mean())
    assert each["sale"].loss == pytest.approx(sale.mean())
    assert each["sale"].base_rate == pytest.approx((labels[clicked] == 2).mean())
    weights = np.where(labels[clicked] == 2, 2.5, 1.0)
    whole = evaluate(ENCODED, features, labels, HEADS)
    assert whole.loss == pytest.approx((click.sum() + (weights * sale).sum()) / 40)
    assert whole.accuracy is None


def test_a_head_is_found_by_its_name() -> None:
    assert HEADS.find_head("sale") is HEADS.heads[1]
    assert Heads(heads=HEADS.heads[:1]).find_head("") is HEADS.heads[0]
    for name in ("", "basket"):
        with pytest.raises(InvalidTask, match="head must be one of 'click', 'sale'"):
            HEADS.find_head(name)


def test_heads_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(LISTED))
    assert read_loss(None, path) == HEADS
    assert read_loss(Loss.MSE, None) is Loss.MSE
    assert read_loss(None, None) is None
    with pytest.raises(typer.BadParameter, match="only one of"):
        read_loss(Loss.MSE, path)
    for text, why in (("{", "is not JSON"), ('{"output": "y"}', "must be a list of heads")):
        path.write_text(text)
        with pytest.raises(typer.BadParameter, match=why):
            read_loss(None, path)


def test_the_graph_that_leaves_has_every_head() -> None:
    assert parse(ENCODED, num_features=NUM_FEATURES).outputs == ((OUTPUT, 2),)


def one_head(**changes: Any) -> Heads:
    return Heads.of([{"output": "y", "targets": [0, 1], "weights": [1, 5], **changes}])


@pytest.mark.parametrize(
    ("head", "outputs", "scored"),
    [
        ({}, 1, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
        ({"weights": None}, 1, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
        ({"loss": "cross_entropy"}, 2, Loss.CROSS_ENTROPY),
        ({"output": "y[1]"}, 2, None),
        ({"loss": "cross_entropy"}, 3, None),
        ({"loss": "mse"}, 1, None),
        ({"targets": [1, 0]}, 1, None),
        ({"targets": [0.1, 0.9]}, 1, None),
        ({"targets": [None, 1]}, 1, None),
        ({"targets": [0, 1, 1], "weights": [1, 1, 1]}, 1, None),
        ({"weights": [0, 5]}, 1, None),
    ],
)
def test_weights_of_two_classes_are_left_out_of_scores_and_other_tables_are_not(
    head: dict[str, Any], outputs: int, scored: Loss | None
) -> None:
    heads = one_head(**head)
    assert scored_loss(heads, outputs) == (scored or heads)
    assert (class_weights(heads, outputs) == (1.0, 5.0)) == bool(scored and "weights" not in head)
    assert scored_loss(HEADS, 2) is HEADS
    assert class_weights(HEADS, 2) == (1.0, 1.0)
    assert scored_loss(Loss.MSE, 1) is Loss.MSE


def test_a_model_of_weighted_classes_is_evaluated_and_calibrated_as_without_weights() -> None:
    encoded = dense_network([NUM_FEATURES, 1], "relu", seed=2)
    output = onnx.ModelProto.FromString(encoded).graph.output[0].name
    rng = np.random.default_rng(1)
    features = rng.integers(0, 256, (200, NUM_FEATURES), dtype=np.uint8)
    logits = predict(encoded, features)[:, 0].astype(np.float64)
    labels = (logits + rng.normal(0, logits.std(), 200) > np.median(logits)).astype(np.int64)
    weighted, plain = one_head(output=output), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    found = evaluate(encoded, features, labels, weighted)
    assert found == evaluate(encoded, features, labels, plain)
    assert found.auc is not None
    assert found.calibrated_loss is not None
    exported, stored = ExportedModel(encoded=encoded, rounds_done=1), BytesIO()
    np.savez(stored, features=features, labels=labels)
    panel = stored.getvalue()
    examples = read_eval_set(panel)
    assert score_model(encoded, examples, weighted) == score_model(encoded, examples, plain)
    by_panel = (calibrate_by_panel(exported, panel, loss) for loss in (weighted, plain))
    assert next(by_panel) == next(by_panel)
    counts = np.array([[5.0, 3.0, 1.0], [1.0, 3.0, 5.0]])
    by_counts = (calibrate_by_histogram(exported, counts, loss) for loss in (weighted, plain))
    assert next(by_counts) == next(by_counts)


@pytest.mark.parametrize(
    ("heads", "what"),
    [
        (HEADS, "2 heads"),
        (one_head(targets=[1, 0]), r"the head 'y' with the targets \[1, 0\]"),
        (one_head(targets=[0.1, 0.9]), r"the head 'y' with the targets \[0\.1, 0\.9\]"),
    ],
)
def test_other_heads_are_not_calibrated_and_the_error_says_which_one_would_be(
    heads: Heads, what: str
) -> None:
    exported = ExportedModel(encoded=dense_network([NUM_FEATURES, 1], "relu", seed=2), rounds_done=1)
    with pytest.raises(InvalidTask, match=rf"the outputs of {what} are not .* has the targets \[0, 1\]"):
        calibrate_by_histogram(exported, np.ones((2, 4)), heads)


def test_a_sigmoid_under_weights_is_refused_as_without() -> None:
    squashed = dense_network([NUM_FEATURES, 1], "relu", seed=2, final="sigmoid")
    with pytest.raises(InvalidModel, match="ends with Sigmoid, which"):
        check_loss_fits(squashed, one_head(), num_features=NUM_FEATURES)


def test_a_head_need_not_name_the_only_output(tmp_path: Path) -> None:
    [head] = Heads.of([{"targets": [0, 1]}], ["y"]).heads
    assert (head.output, head.name) == ("y", "y")
    with pytest.raises(InvalidTask, match=r"heads\[0\] lacks 'output'.*; the model's outputs are 'a', 'b'"):
        Heads.of([{"targets": [0, 1]}], ["a", "b"])
    with pytest.raises(InvalidTask, match=r"heads\[0\] lacks 'output': expected .*, name$"):
        Heads.of([{"targets": [0, 1]}])
    (path := tmp_path / "heads.json").write_text(json.dumps([{"targets": [0, 1, 1]}]))
    read = read_loss(None, path, ENCODED)
    assert isinstance(read, Heads)
    assert read.heads[0].output == OUTPUT
