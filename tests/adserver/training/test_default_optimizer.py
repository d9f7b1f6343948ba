"""A job that names no learning rate gets quickstart's rule for a network of one's own, or an error."""

from dataclasses import replace
from typing import Any

import pytest

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.cost import job_epsilons
from adserver.training.default_optimizer import choose_rate, read_steps, warn_of_rate, why_no_rule
from adserver.training.defaults import choose_learning_rate
from maskedlark.errors import InvalidTask
from maskedlark.model.heads import Heads
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise
from tests.adserver.job_world import MODEL
from tests.adserver.training.test_submission import QUIET, SUBMISSION, TASK, dataset_of, plan, task_of

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
