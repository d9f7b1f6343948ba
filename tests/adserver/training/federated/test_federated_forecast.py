"""`adserver job plan --strategy`: what a federated job would cost, before it is stored."""

import re
from pathlib import Path
from typing import Any

import pytest

from adserver.budgets.reservations import Budgets
from adserver.records.federated_plan import FederatedPlan
from adserver.records.submissions import FederatedSubmission
from adserver.training.cost import privacy_line
from adserver.training.federated.forecast import FederatedForecast, forecast
from adserver.views.curves import _title_of_federated
from adserver.views.federated import print_forecast
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.accounting import spent
from tests.federated_site import MODEL, SETTINGS, WIDTHS, Site


def asked(epsilon: float | None = None, **settings: Any) -> FederatedSubmission:
    merged = {**SETTINGS, **settings}
    return FederatedSubmission(
        kind="dp-fedavg",
        settings={name: value for name, value in merged.items() if value is not None},
        widths=WIDTHS,
        epsilon=epsilon,
        window_s=0.0,
        least_devices=None,
    )


def found(site: Site, submission: FederatedSubmission) -> FederatedForecast:
    held = Budgets(engine=site.engine, clock=lambda: site.now_s).reservations_of_task(site.scene.task)
    return forecast(submission, task=site.scene.task, already=held, now_s=site.now_s)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, {"mechanism": "gaussian"})


def test_a_plan_costs_what_submitting_it_then_costs(site: Site) -> None:
    planned = found(site, asked(epsilon=2.5))
    assert planned.alone.ad_server <= 2.5
    site.submit(epsilon=2.5)
    plan = site.store.get(site.job_id).plan
    assert isinstance(plan, FederatedPlan)
    job = plan.job
    assert spent(job.charges(site.scene.task, job.rounds), site.scene.task.delta) == planned.alone


def test_without_epsilon_or_noise_a_plan_takes_what_the_task_has_left(site: Site) -> None:
    first = found(site, asked())
    assert first.together.ad_server <= 12.0
    site.submit(epsilon=4.0)
    second = found(site, asked())
    assert second.together.ad_server <= 12.0
    assert second.alone.ad_server < first.alone.ad_server


def test_an_epsilon_of_which_less_is_left_is_refused_and_what_is_left_is_accepted(site: Site) -> None:
    task = site.scene.task
    job = found(site, asked(epsilon=8.0)).plan.job
    held = job.charges(task, job.rounds)

    def next_to_it(epsilon: float) -> FederatedForecast:
        return forecast(asked(epsilon=epsilon), task=task, already=held, now_s=site.now_s)

    with pytest.raises(JobRefused, match="epsilon 11 was asked for") as refusal:
        next_to_it(11.0)
    assert refusal.value.reason is JobReason.BUDGET_EXHAUSTED
    told = re.search(r"ask for epsilon ([0-9.]+) ", str(refusal.value))
    assert told is not None
    left = float(told[1])
    assert 0.95 * left < next_to_it(left).alone.ad_server <= left < 11.0
    with pytest.raises(InvalidTask, match="ask for at most that"):
        next_to_it(13.0)


def test_with_noise_alone_a_plan_has_the_most_rounds_that_fit(site: Site) -> None:
    most = found(site, asked(rounds=None, noise_multiplier=2.0)).plan.job.rounds
    found(site, asked(rounds=most, noise_multiplier=2.0))
    with pytest.raises(JobRefused) as refusal:
        found(site, asked(rounds=most + 1, noise_multiplier=2.0))
    assert refusal.value.reason is JobReason.BUDGET_EXHAUSTED


def test_a_plan_says_what_leaked_coins_and_noise_would_do(site: Site) -> None:
    planned = found(site, asked(noise_multiplier=2.0))
    assert planned.leaked.ad_server > planned.alone.ad_server
    # Two helpers' full noise of z S on the sum, over q K, in each of the parameters.
    assert planned.noise_to_signal == pytest.approx(2**0.5 * 2.0 / (0.5 * 6) * MODEL.size**0.5, rel=1e-6)


def test_a_job_names_both_figures_of_leaked_coins_as_its_plan_does(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = found(site, asked(noise_multiplier=2.0))
    leaked, rounds = planned.leaked, planned.plan.job.rounds
    both = f"; {leaked.ad_server:.3g} ({leaked.colluding:.3g} with one helper) if devices' coins leaked"
    assert privacy_line(planned.plan, rounds).endswith(both)
    assert not privacy_line(planned.plan, rounds - 1).endswith(both)
    assert _title_of_federated(planned.plan).endswith(f"{both} · {rounds} rounds")
    print_forecast(planned)
    assert "if devices' coins leaked" in capsys.readouterr().out


def test_where_all_devices_take_part_coins_tell_nothing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = found(site, asked(noise_multiplier=9.0, sampling_rate=1.0))
    assert planned.leaked == planned.alone
    assert "coins" not in privacy_line(planned.plan, planned.plan.job.rounds)
    print_forecast(planned)
    assert "coins" not in capsys.readouterr().out


def test_a_task_without_noise_plans_at_no_cost(tmp_path: Path) -> None:
    planned = found(Site(tmp_path), asked())
    assert planned.noise_norm == 0
    assert planned.plan.job.rounds == SETTINGS["rounds"]
