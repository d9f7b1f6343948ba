"""Planning with correlated noise: what is found fits both budgets, beside independent noise."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from adserver.budgets.comparison import compare
from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import Planner
from adserver.messages.plan import PlanMessage, submit_options
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.submissions import PlanConstraints, PlanRequest
from adserver.records.training_plan import Schedule
from adserver.training.planning import Planned
from adserver.views.plan import ShownPlan, print_plan
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.correlated import MAX_EPOCHS, best_carried, gain
from maskedlark.releases.sampling import StepNoise
from tests.builders import world

STEPS, EPOCHS = 20, 6
WISH = PlanConstraints(rounds=STEPS * EPOCHS, batch_size=100.0, noise_multiplier=None)
REQUEST = PlanRequest(wish=WISH)


def planner(noise: StepNoise = StepNoise.CORRELATED, *, momentum: float = 0.9, **changes: Any) -> Planner:
    settings = {
        "mechanism": "gaussian",
        "min_batch_size": 20,
        "epsilon": 16.0,
        "collusion_epsilon": 8.0,
        **changes,
    }
    task, schedule = world(**settings).task, Schedule()  # constant, as `gain` is computed
    room = JobLimits(task=task, dataset_size=2_000, noise=noise, momentum=momentum, schedule=schedule)
    return Planner(room=room, num_parameters=500)


def test_correlated_noise_that_is_found_fits_and_less_does_not() -> None:
    of = planner()
    found = of.plan(WISH).recommended
    assert found.carried == best_carried(steps=STEPS, epochs=EPOCHS, momentum=0.9)
    assert 7.8 < found.cost.alone.colluding <= 8.0
    with pytest.raises(JobRefused, match="with one helper"):
        of.option(rounds=found.rounds, batch_size=100.0, noise_multiplier=0.97 * found.noise_multiplier)


def test_where_collusion_binds_correlated_noise_is_worth_more() -> None:
    """By as much as the error of the weights is smaller at equal cost."""
    of = planner(StepNoise.INDEPENDENT)
    compared = compare(of, of.plan(WISH).recommended)
    assert compared is not None
    assert compared.independent is not None
    assert compared.correlated is not None
    ratio = compared.correlated.noise_to_signal / compared.independent.noise_to_signal
    carried = compared.correlated.carried or 0
    assert ratio == pytest.approx(gain(carried, steps=STEPS, epochs=EPOCHS, momentum=0.9), rel=0.02)
    assert compared.correlated.steps_worth > compared.independent.steps_worth
    assert compared.correlated.cost.alone.ad_server > compared.independent.cost.alone.ad_server


def test_the_comparison_is_the_same_from_either_side() -> None:
    sides = [planner(noise) for noise in StepNoise]
    first, second = (compare(of, of.plan(WISH).recommended) for of in sides)
    assert first == second


@pytest.mark.parametrize(("asked", "words"), [(2_000.0, "smaller batches"), (100.0, "to 1000 epochs")])
def test_where_it_cannot_be_the_comparison_says_why(asked: float, words: str) -> None:
    of = planner(StepNoise.INDEPENDENT, epsilon=1e6, collusion_epsilon=1e6)
    rounds = 10 if asked == 2_000.0 else (MAX_EPOCHS + 1) * STEPS
    option = of.option(rounds=rounds, batch_size=asked, noise_multiplier=50.0)
    compared = compare(of, option)
    assert compared is not None
    assert compared.correlated is None
    assert words in compared.refusal


def test_there_is_nothing_to_compare_with_laplace_noise() -> None:
    of = planner(StepNoise.INDEPENDENT, mechanism="laplace", norm="l1")
    option = of.option(rounds=STEPS, batch_size=100.0, noise_multiplier=50.0)
    assert compare(of, option) is None
    with pytest.raises(JobRefused) as refused:
        planner(mechanism="laplace", norm="l1").plan(WISH)
    assert refused.value.reason is JobReason.MALFORMED


def test_poisson_samples_take_independent_noise_only() -> None:
    of = planner()
    with pytest.raises(JobRefused, match="not proven for Poisson"):
        replace(of, room=replace(of.room, is_allocated=False)).plan(WISH)


def test_rounds_are_found_for_correlated_noise() -> None:
    found = planner().plan(PlanConstraints(rounds=None, batch_size=100.0, noise_multiplier=20.0)).recommended
    assert found.cost.alone.colluding <= 8.0
    assert found.carried is not None
    cheap = planner(collusion_epsilon=1e6, epsilon=1e6)
    most = cheap.plan(PlanConstraints(rounds=None, batch_size=1_000.0, noise_multiplier=3e4)).recommended
    assert most.rounds <= 2 * MAX_EPOCHS


@pytest.mark.parametrize("momentum", [1.0, -0.1, float("nan")])
def test_a_momentum_outside_its_range_is_refused(momentum: float) -> None:
    with pytest.raises(InvalidTask, match="momentum"):
        planner(momentum=momentum)


def test_where_collusion_binds_larger_batches_have_less_noise_for_more_of_the_helpers_time() -> None:
    of = replace(planner(StepNoise.INDEPENDENT), round_seconds=lambda batch: batch / 100)
    compared = compare(of, of.plan(WISH).recommended)
    assert compared is not None
    assert compared.independent is not None
    independent = [compared.independent, *(one for one in compared.larger if one.carried is None)]
    correlated = [one for one in compared.larger if one.carried is not None]
    assert independent[-1].batch_size == 2_000.0  # all reports, which are one batch: no noise carries on
    assert len(independent) == 5
    assert correlated
    for options in (independent, correlated):
        for one, larger in pairwise(options):
            assert larger.noise_norm < one.noise_norm
            assert larger.core_seconds == pytest.approx(2 * STEPS * EPOCHS * larger.batch_size / 100)
            assert larger.cost.together.colluding <= 8.0
    # An epoch costs the same however many batches it has: noise grows with the root of their size.
    ratio = independent[-1].noise_norm / independent[0].noise_norm
    assert ratio == pytest.approx(math.sqrt(100.0 / 2_000.0), rel=0.02)


def test_where_the_other_budget_binds_no_larger_batches_are_offered() -> None:
    of = planner(StepNoise.INDEPENDENT, epsilon=1.0, collusion_epsilon=1e6)
    compared = compare(of, of.plan(WISH).recommended)
    assert compared is not None
    assert compared.larger == ()


def test_people_and_programs_see_both_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    of = planner()
    plan = of.plan(WISH)
    compared = compare(of, plan.recommended)
    shown = PlanMessage.of(Planned(plan, of.room, compared), REQUEST).model_dump(mode="json")
    assert shown["compared"]["correlated"]["carried"] == plan.recommended.carried
    assert shown["compared"]["independent"]["carried"] is None
    options = submit_options(plan.recommended, Planned(plan, of.room), REQUEST)
    assert f"--noise correlated --carried {plan.recommended.carried} --learning-rate RATE" in options
    assert "correlated" not in shown["compared"]["independent"]["submit"]
    print_plan(Planned(plan, of.room, compared), REQUEST)
    printed = capsys.readouterr().out
    assert "the marked job with either noise" in printed
    assert "correlated" in printed


def test_noise_of_a_kind_that_is_impossible_is_passed_over_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of = planner(StepNoise.INDEPENDENT, collusion_epsilon=1e6)
    plan = of.plan(replace(WISH, batch_size=None))  # all reports in each round
    planned = Planned(plan, of.room, compare(of, plan.recommended))
    assert planned.compared is not None
    assert planned.compared.correlated is None
    print_plan(planned, REQUEST)
    for shown in (capsys.readouterr().out, repr(ShownPlan(planned, REQUEST))):
        assert "correlated" not in shown
        assert "refus" not in shown


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (Schedule(), "schedule='constant')"),
        (
            Schedule(kind=ScheduleKind.STEP, step_rounds=3),
            "schedule=Schedule(kind=ScheduleKind.STEP, step_rounds=3, step_factor=0.5))  # from "
            "adserver.records.optimizer_kinds import ScheduleKind; from adserver.records.training_plan "
            "import Schedule",
        ),
    ],
)
def test_a_plan_in_python_opens_with_the_call_that_trains_its_job(schedule: Schedule, said: str) -> None:
    of = planner()
    of = replace(of, learning_rate=0.3, room=replace(of.room, schedule=schedule, clip_norm=0.5))
    plan = of.plan(WISH)
    best, shown = plan.recommended, ShownPlan(Planned(plan, of.room), REQUEST)
    first, call, _, head, *_ = repr(shown).splitlines()
    assert f"{best.rounds} rounds of 100 reports with noise {best.noise_multiplier:.4g} correlated" in first
    prefix, _, arguments = call.partition("client.train(model, loss=..., eval_set=..., ")
    assert prefix == "train it with: "
    assert arguments == (
        f"rounds={best.rounds}, batch_size=100, noise_multiplier={best.noise_multiplier!r}, "
        f"noise='correlated', carried={best.carried}, clip_norm=0.5, learning_rate=0.3, "
        f"optimizer='momentum', momentum=0.9, {said}"
    )
    assert head.split()[:2] == ["rounds", "batch"]
    assert shown["recommended"]["carried"] == best.carried
    assert f"<p>{first}</p>" in shown._repr_html_()
    assert "<th>rounds</th>" in shown._repr_html_()
    assert " --" not in repr(shown)  # options of a command line


def test_each_of_several_jobs_has_its_line_and_its_call() -> None:
    of = planner(StepNoise.INDEPENDENT)
    of = replace(of, room=replace(of.room, jobs=3))
    plan = of.plan(WISH)
    lines = repr(ShownPlan(Planned(plan, of.room), REQUEST)).splitlines()
    assert lines[0].startswith("each of the 3 jobs to submit: 120 rounds of 100 reports")
    assert lines[1].startswith("train each with: client.train(")
