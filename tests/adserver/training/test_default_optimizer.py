"""A job that names no learning rate or rounds gets the rules for a network of one's own, or an error."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, cat, nn, tensor

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.as_onnx import as_onnx
from adserver.training.cost import job_epsilons
from adserver.training.default_optimizer import (
    choose_rate,
    has_hidden_layer,
    read_steps,
    warn_of_rate,
    why_no_rule,
)
from adserver.training.defaults import choose_learning_rate
from adserver.training.submission import plan_job
from maskedlark.errors import InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise
from tests.adserver.job_world import ENCODED_MODEL, MODEL, NUM_FEATURES
from tests.adserver.training.test_submission import QUIET, SUBMISSION, TASK, dataset_of, plan, task_of
from tests.builders import NOW

OPEN: dict[str, Any] = {"optimizer": None, "schedule": None, "batch_size": None}
ROWS = 30_000
MOMENTUM = Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=1.0)
COSINE = Schedule(kind=ScheduleKind.COSINE)


def rule(epsilon: float) -> float:
    return choose_learning_rate(rows=ROWS, epsilon=epsilon, parameters=MODEL.num_parameters, network=None)


def planned(**changes: Any) -> Any:
    of = task_of(collusion_epsilon=64.0)
    return plan(of, dataset_of(of, size=ROWS, received=ROWS), **{**OPEN, **changes})


def test_a_job_without_a_rate_has_momentum_a_cosine_and_the_rule_for_its_reports_and_epsilon() -> None:
    for epsilon in (0.5, 2.0):
        made = planned(epsilon=epsilon)
        assert made.optimizer == replace(MOMENTUM, learning_rate=rule(epsilon))
        assert made.schedule == COSINE
    assert rule(0.5) < rule(2.0)
    assert planned(schedule=replace(COSINE, final_factor=0.2)).schedule.final_factor == 0.2


def test_of_a_noise_multiplier_the_rule_takes_the_epsilon_that_it_costs() -> None:
    made = planned(epsilon=None, noise_multiplier=9.0)
    cost = job_epsilons(made, made.job.rounds).ad_server
    assert made.optimizer.learning_rate == rule(cost) not in (0.1, 4.0)


def test_a_rate_far_above_the_rules_is_warned_of_and_no_other() -> None:
    def warned(rate: float, **changes: Any) -> str:
        given = {"optimizer": replace(MOMENTUM, learning_rate=rate), "schedule": COSINE, **changes}
        asked = replace(SUBMISSION, **{**OPEN, "epsilon": 2.0, **given})
        return warn_of_rate(asked, planned(**{"epsilon": 2.0, **given}), parameters=MODEL.num_parameters)

    assert warned(10 * rule(2.0)) == ""
    assert f"learning rate 50 is {50 / rule(2.0):,.0f} times the rule's, {rule(2.0):g}" in warned(50.0)
    assert warned(50.0, clip_norm=0.01) == ""  # no gradient is divided by this bound
    assert warned(50.0, schedule=Schedule()) == warned(50.0, optimizer=None) == ""


def test_a_fixed_bound_divides_the_rate_and_heads_multiply_it() -> None:
    def rate(**changes: Any) -> float:
        asked = replace(SUBMISSION, **{**OPEN, **changes})
        return choose_rate(asked, rows=ROWS, epsilon=2.0, parameters=9)

    assert rate(clip_norm=0.5) == 2 * rate()
    assert rate(clip_norm=0.5, adaptive_clip=AdaptiveClip(quantile=0.9)) == rate()
    heads = [{"output": f"y[{column}]", "targets": [0, 1]} for column in range(4)]
    assert rate(loss=Heads.of(heads)) == 2 * rate()


def test_an_optimizer_that_is_named_keeps_a_constant_rate() -> None:
    made = plan(schedule=None)
    assert (made.optimizer, made.schedule) == (SUBMISSION.optimizer, Schedule())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": Schedule()}, "the schedule is constant"),
        ({"is_clip_per_layer": True}, "one clip bound"),
        ({"noise": StepNoise.CORRELATED}, "independent noise"),
        ({"task": QUIET, "epsilon": None}, "the task adds no noise"),
    ],
)
def test_a_job_that_the_rule_is_not_for_must_name_its_rate(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidTask, match=f"learning_rate has no default here: .*{why}.*: give one"):
        plan(**{**OPEN, **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"optimizer": Optimizer(learning_rate=1.0)}, "the optimizer is sgd"),
        ({"optimizer": replace(MOMENTUM, momentum=0.5)}, "the rule is for momentum 0.9"),
        ({"schedule": None}, "the schedule is constant"),
    ],
)
def test_the_rule_is_for_momentum_under_a_cosine(changes: dict[str, Any], why: str) -> None:
    asked: Submission = replace(SUBMISSION, **{"optimizer": MOMENTUM, "schedule": COSINE, **changes})
    found = why_no_rule(asked, TASK)
    assert why in found
    assert bool(found) == bool(why)


def test_another_optimizer_must_name_its_rate() -> None:
    assert read_steps(None, None, 0.9, None) == read_steps("momentum", None, 0.9, None) == (None, None)
    assert read_steps("adam", 0.5, 0.9, None) == (Optimizer(kind=OptimizerKind.ADAM, learning_rate=0.5), None)
    for kind, momentum in (("sgd", 0.9), ("adam", 0.9), (None, 0.5), ("momentum", 0.5)):
        with pytest.raises(
            InvalidTask, match=r"give a rate \(learning_rate=, --learning-rate\), or leave out optimizer"
        ):
            read_steps(kind, None, momentum, None)
    with pytest.raises(InvalidTask):
        read_steps("sdg", 0.5, 0.9, None)


def test_a_rate_alone_changes_neither_the_rules_momentum_nor_its_cosine() -> None:
    assert read_steps(None, 0.5, 0.9, None) == (replace(MOMENTUM, learning_rate=0.5), COSINE)
    assert read_steps(None, 0.5, 0.8, Schedule()) == (
        replace(MOMENTUM, learning_rate=0.5, momentum=0.8),
        Schedule(),
    )


HIDDEN_LAYERS = (nn.Linear(NUM_FEATURES, 3), nn.ReLU(), nn.Linear(3, 1))
HIDDEN = dense_network([NUM_FEATURES, 4, 1], "relu", seed=1)
BY_RULE: dict[str, Any] = {"rounds": None, "model": HIDDEN, "epsilon": 2.0}


def test_rounds_that_a_job_leaves_open_follow_its_hidden_layer_reports_and_epsilon() -> None:
    made = planned(**BY_RULE)
    assert (made.job.rounds, made.is_until_budget) == (300, False)
    assert 1.95 < job_epsilons(made, 300).ad_server <= 2.0
    assert planned(**{**BY_RULE, "model": ENCODED_MODEL}).job.rounds == 120
    assert planned(**{**BY_RULE, "epsilon": 0.5}).job.rounds == 120
    assert planned(**{**BY_RULE, "rounds": 7}).job.rounds == 7
    assert plan(QUIET, **{**OPEN, **BY_RULE, "epsilon": None, "optimizer": MOMENTUM}).job.rounds == 120


def test_epsilon_of_a_person_gives_fewer_reports_their_rounds() -> None:
    for reports, rounds in ((1, 300), (4, 120)):
        of = task_of(collusion_epsilon=64.0, unit="user", reports_per_user=reports)
        of_many = dataset_of(of, size=ROWS, received=ROWS)
        assert plan(of, of_many, **{**OPEN, **BY_RULE}).job.rounds == rounds


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 3_000.0},
        {"train": ("*",)},
        {"optimizer": MOMENTUM},
        {"optimizer": Optimizer(learning_rate=0.1), "schedule": COSINE},
        {"optimizer": MOMENTUM, "schedule": COSINE, "is_clip_per_layer": True},
    ],
    ids="-".join,
)
def test_what_more_rounds_were_not_measured_on_has_120(changes: dict[str, Any]) -> None:
    assert planned(**{**BY_RULE, **changes}).job.rounds == 120


def test_weights_that_know_the_labels_have_120_rounds() -> None:
    of = task_of(collusion_epsilon=64.0)
    asked, of_many = replace(SUBMISSION, **{**OPEN, **BY_RULE}), dataset_of(of, size=ROWS, received=ROWS)
    for is_trained, rounds in ((True, 120), (False, 300)):
        made = plan_job(asked, task=of, dataset=of_many, job_id=bytes(16), now_s=NOW, is_trained=is_trained)
        assert made.job.rounds == rounds


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 1), nn.Parameter(tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * self.scale


@pytest.mark.parametrize(
    ("module", "is_hidden"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), True),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 1)), True),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU6(), nn.Linear(3, 1)), True),
        (_Scaled(), False),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), False),
        (nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), False),
        (nn.Sequential(nn.Tanh(), nn.Linear(4, 1)), False),
    ],
)
def test_a_layer_is_hidden_where_weights_follow_an_activation_of_weights(
    module: nn.Module, is_hidden: bool
) -> None:
    assert has_hidden_layer(parse(as_onnx(module.eval(), 4), num_features=4)) == is_hidden


def test_a_job_whose_network_looks_words_up_has_120_rounds() -> None:
    class LookedUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layers = nn.Embedding(256, 2), nn.Sequential(*HIDDEN_LAYERS)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layers(cat([self.table((x[:, 0] * 256).long()), x[:, 2:]], 1))
            return found

    assert planned(**{**BY_RULE, "model": as_onnx(LookedUp().eval(), NUM_FEATURES)}).job.rounds == 120
    without = as_onnx(nn.Sequential(*HIDDEN_LAYERS).eval(), NUM_FEATURES)
    assert planned(**{**BY_RULE, "model": without}).job.rounds == 300


def test_rounds_left_out_beside_a_noise_multiplier_are_the_rules_and_not_the_budgets() -> None:
    noisy: dict[str, Any] = {**BY_RULE, "epsilon": None, "noise_multiplier": 20.0}
    made = planned(**noisy)
    assert (made.job.rounds, made.is_until_budget) == (120, False)
    until = planned(**noisy, is_until_budget=True)
    assert until.is_until_budget
    assert until.job.rounds > 300
