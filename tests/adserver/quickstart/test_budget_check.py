"""Settings are refused exactly where the ad server, or a helper's ledger, would refuse the run."""

import re
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from adserver.quickstart.budget_check import (
    compare_noise,
    unsigned_task,
    why_devices_over_budget,
    why_over_budget,
)
from adserver.quickstart.measurement import plan_measurement
from adserver.quickstart.measurement_forecast import plan_measured_query
from adserver.quickstart.settings import (
    DataSettings,
    FederatedSettings,
    Measured,
    MeasureSettings,
    Servers,
    Settings,
    TaskSettings,
    TrainingSettings,
)
from adserver.training.submission import plan_job
from helper.ledger.records import Reservation
from helper.ledger.spending import check_fits
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.privacy.accounting import Charge
from tests.adserver.quickstart.test_measurement import table
from tests.adserver.training.test_submission import SUBMISSION, dataset_of

REPORTS, JOB_ID = 320, bytes(range(16))
SERVERS = Servers(
    helper_0="127.0.0.1:1", helper_1="127.0.0.1:2", adserver_grpc="127.0.0.1:3", adserver_http="127.0.0.1:4"
)
VISITS = table(paid=[row % 7 for row in range(400)], region=["north", "south"] * 200)
SUBMITTED = replace(
    SUBMISSION, model=dense_network([1, 1], "relu", seed=1, final="linear"), eval_set=None, is_allocated=True
)


def settings_of(
    *, collusion: float, measured: float | None, epsilon: float, rounds: int, batch_size: float | None
) -> Settings:
    asked = MeasureSettings() if measured is None else MeasureSettings(
        values=(Measured(column="paid", most=6),), keys=("region",), epsilon=measured
    )  # fmt: skip
    return Settings(
        servers=SERVERS,
        task=TaskSettings(min_batch_size=20, epsilon=4.0, collusion_epsilon=collusion),
        measure=asked,
        training=TrainingSettings(epsilon=epsilon, rounds=rounds, batch_size=batch_size),
    )


def find_problems(settings: Settings) -> list[str]:
    plan = plan_measurement(VISITS, DataSettings(), settings.measure)
    if plan is None:
        return [*why_over_budget(settings, unsigned_task(settings.task), reports=REPORTS)]
    task = unsigned_task(settings.task, measurement=plan.declared)

    def charge_query(epsilon: float) -> tuple[Charge, ...]:
        return plan_measured_query(plan, task, epsilon, REPORTS).charges(task, 1)

    return [*why_over_budget(settings, task, measured=charge_query, reports=REPORTS)]


def compare_with_run(settings: Settings) -> bool:
    """Return whether settings pass, after comparing that with what a run would be told, to the number."""
    measure, training = settings.measure, settings.training
    plan = plan_measurement(VISITS, DataSettings(), measure)
    task = unsigned_task(settings.task, measurement=None if plan is None else plan.declared)
    query = None if plan is None else plan_measured_query(plan, task, measure.epsilon, REPORTS)
    charges = () if query is None else query.charges(task, 1)
    problems = find_problems(settings)
    before = [] if query is None else [Reservation(spec=query, rounds=1)]
    if query is not None:
        check_fits(task, [], before[0])
    submitted = replace(
        SUBMITTED, epsilon=training.epsilon, rounds=training.rounds, batch_size=training.batch_size
    )
    dataset = dataset_of(task, size=REPORTS, received=REPORTS)
    submit = partial(
        plan_job, submitted, task=task, dataset=dataset, job_id=JOB_ID, now_s=task.starts_at, already=charges
    )
    if problems:
        with pytest.raises(JobRefused) as refused:
            submit()
        assert refused.value.reason is JobReason.BUDGET_EXHAUSTED
        [problem] = problems
        told = re.search(r"leaves? this job ([0-9.]+):", str(refused.value))
        mine = re.search(r"leave it ([0-9.]+):", problem)
        assert mine is not None
        assert mine[1] == ("0" if told is None else told[1]), str(refused.value)
        return False
    planned = submit()
    check_fits(task, before, Reservation(spec=planned.job, rounds=training.usual_rounds))
    return True


@pytest.mark.parametrize("collusion", [4.0, 5.0, 8.0])
@pytest.mark.parametrize(("rounds", "batch_size"), [(1, None), (30, None), (30, 80.0)])
def test_a_run_is_refused_before_it_starts_exactly_where_it_would_be_later(
    collusion: float, rounds: int, batch_size: float | None
) -> None:
    verdicts = {
        (measured, epsilon): compare_with_run(
            settings_of(
                collusion=collusion, measured=measured, epsilon=epsilon, rounds=rounds, batch_size=batch_size
            )
        )
        for measured, epsilon in product((None, 0.1, 0.5, 1.5, 2.5, 4.0), (0.5, 1.0, 2.0, 3.0, 3.5, 4.0))
    }
    # Both verdicts occur, and one helper's budget refuses what the other one holds
    assert verdicts[0.1, 0.5]
    assert not verdicts[4.0, 4.0]
    if batch_size is None:
        # More than 4 by plain sum
        assert verdicts[1.5, 3.0] == (collusion > 5.0)


@pytest.mark.parametrize(("rows", "measured", "epsilon", "fits"), [(3, 0.5, 3.0, True), (3, 2.5, 4.0, False)])
def test_a_run_of_people_is_refused_exactly_where_it_would_be_later(
    *, rows: int, measured: float, epsilon: float, fits: bool
) -> None:
    asked = settings_of(collusion=8.0, measured=measured, epsilon=epsilon, rounds=12, batch_size=None)
    of_people = replace(asked, task=replace(asked.task, person="who", rows_per_person=rows))
    assert compare_with_run(of_people) == fits
    # The noise is found to 1 %
    assert compare_noise(of_people, reports=REPORTS) == pytest.approx(rows, rel=0.03)


def test_noise_is_compared_where_an_epsilon_of_one_row_would_be_refused() -> None:
    asked = settings_of(collusion=8.0, measured=None, epsilon=3.0, rounds=12, batch_size=80.0)
    assert find_problems(asked)
    of_people = replace(asked, task=replace(asked.task, person="who", rows_per_person=2))
    assert 1 <= compare_noise(of_people, reports=REPORTS) <= 2.06


def test_the_epsilon_that_is_left_passes_next_to_any_measurement() -> None:
    for measured in (1.5, 2.0, 3.0, 3.9):
        tight = settings_of(collusion=8.0, measured=measured, epsilon=4.0, rounds=12, batch_size=None)
        [problem] = find_problems(tight)
        left = re.search(r"leave it ([0-9.]+): lower \[training\] epsilon to \1,? or ", problem)
        assert left is not None
        fitting = replace(tight.training, epsilon=float(left[1]))
        assert compare_with_run(replace(tight, training=fitting))


@pytest.mark.parametrize(("epsilon", "batch_size"), [(3.5, None), (2.5, 80.0)])
def test_the_epsilon_that_is_named_for_the_measurement_passes_and_not_much_more(
    epsilon: float, batch_size: float | None
) -> None:
    tight = settings_of(collusion=8.0, measured=3.0, epsilon=epsilon, rounds=12, batch_size=batch_size)
    [problem] = find_problems(tight)
    told = re.search(r"lower .* or \[measure\] epsilon to ([0-9.]+), or raise the budgets$", problem)
    assert told is not None
    most = float(told[1])
    assert compare_with_run(replace(tight, measure=replace(tight.measure, epsilon=most)))
    assert not compare_with_run(replace(tight, measure=replace(tight.measure, epsilon=1.02 * most)))


def test_a_setting_that_no_value_helps_is_not_named() -> None:
    too_much = settings_of(collusion=4.0, measured=0.5, epsilon=4.0, rounds=30, batch_size=80.0)
    [problem] = find_problems(too_much)
    assert re.search(r": lower \[training\] epsilon to [0-9.]+, or raise the budgets$", problem)
    nothing_left = settings_of(collusion=8.0, measured=4.0, epsilon=1.5, rounds=12, batch_size=80.0)
    [problem] = find_problems(nothing_left)
    assert "leave it 0: lower [measure] epsilon to " in problem


def test_the_epsilon_that_devices_are_left_passes() -> None:
    tight = Settings(
        servers=SERVERS,
        task=TaskSettings(epsilon=3.0, collusion_epsilon=3.0),
        training=TrainingSettings(epsilon=3.0, rounds=6),
        federated=FederatedSettings(person="who", sampling_rate=0.5),
    )
    [problem] = why_devices_over_budget(tight, devices=400)
    told = re.search(r"leave it ([0-9.]+): lower \[training\] epsilon to \1, or raise the budgets$", problem)
    assert told is not None
    fitting = replace(tight.training, epsilon=float(told[1]))
    assert [*why_devices_over_budget(replace(tight, training=fitting), devices=400)] == []


def test_a_batch_larger_than_what_is_reported_is_refused() -> None:
    settings = settings_of(collusion=8.0, measured=None, epsilon=3.0, rounds=30, batch_size=310.0)
    task = unsigned_task(settings.task)
    assert not [*why_over_budget(settings, task, reports=REPORTS)]
    [problem] = why_over_budget(settings, task, reports=300)
    assert problem.startswith("[training] cannot be asked of 300 reports: the batch size is 310")
