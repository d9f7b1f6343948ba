"""What an evaluation is refused for before anything is charged."""

from typing import Any

import pytest

from maskedlark.errors import JobReason, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.releases.evaluation import MAX_BINS, EvaluationSpec, loss_to_evaluate
from tests.builders import world
from tests.helper.gradient.exact.graphs import GraphBuilder
from tests.maskedlark.query_specs import evaluation as evaluation_of
from tests.refusals import refused
from tests.update_builders import update_world

GAUSSIAN: dict[str, Any] = {"mechanism": "gaussian", "norm": "l2", "epsilon": 8.0}
OF = world(**GAUSSIAN)
TASK = OF.task


def evaluation(**changes: Any) -> EvaluationSpec:
    return evaluation_of(OF, **{"noise_multiplier": 1.0, **changes})


def test_an_evaluation_that_fits_is_not_refused() -> None:
    for spec in (evaluation(), evaluation(num_bins=MAX_BINS)):
        spec.check(TASK, records=1_000)


@pytest.mark.parametrize(
    ("changes", "records", "reason"),
    [
        ({"num_bins": MAX_BINS + 1}, 1_000, JobReason.DOMAIN_TOO_LARGE),
        ({"noise_multiplier": 0.0}, 1_000, JobReason.NOISE_OUT_OF_RANGE),
        ({}, 1 << 50, JobReason.OVERFLOW),
    ],
    ids=str,
)
def test_what_an_evaluation_is_refused_for(changes: dict[str, Any], records: int, reason: JobReason) -> None:
    with refused(reason):
        evaluation(**changes).check(TASK, records=records)


def test_an_evaluation_of_reports_that_hold_updates_is_refused() -> None:
    of = update_world()
    with refused(JobReason.UNDECLARED, "updates and no labels"):
        evaluation_of(of).check(of.task, records=10)


@pytest.mark.parametrize(
    "settings",
    [
        {"targets": [0, 1, 2], "loss": "mse"},
        {"targets": [0, 0.5, 1], "loss": "mse"},
        {"targets": [0, 3, 1], "loss": "poisson"},
    ],
    ids=str,
)
def test_a_head_of_values_is_refused_when_its_loss_is_chosen(settings: dict[str, Any]) -> None:
    model = parse(dense_network([4, 2], "relu", seed=3), num_features=4)
    head = Heads.of([{**settings, "output": f"{model.outputs[0][0]}[0]"}]).heads[0]
    task = world(num_features=4, labels={"kind": "classes", "size": 3}).task
    with refused(ModelReason.WRONG_LOSS, "only heads of classes"):
        loss_to_evaluate(task, model, head)


@pytest.mark.parametrize(
    ("last", "loss"),
    [
        ((), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
        (("Relu",), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
        (("Sigmoid",), Loss.BINARY_CROSS_ENTROPY),
        (("Sigmoid", "Transpose", "Transpose"), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
    ],
    ids=str,
)
def test_an_output_is_a_chance_only_if_a_sigmoid_is_last(last: tuple[str, ...], loss: Loss) -> None:
    graph = GraphBuilder(4, seed=1)
    value = graph.gemm("x", 4, 1)
    for operator in last:
        value = graph.node(operator, value)
    task = world(num_features=4, labels={"kind": "classes", "size": 2}).task
    assert loss_to_evaluate(task, graph.model(value, 1)) is loss
