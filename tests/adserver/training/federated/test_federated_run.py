"""Federated jobs at the ad server.

Real helpers in memory, real devices, and processes that die between any two steps.
"""

from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from adserver.budgets.reservations import Budgets
from adserver.cli.main import app
from adserver.records.exported_model import ModelWeights
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import JobState
from adserver.store.rounds import DeviceRound
from adserver.training.export import export_job
from adserver.training.federated import run as federated_run
from adserver.training.federated.model import write_trained_file
from adserver.training.inference import Evaluation
from adserver.training.job_outcome import FEW_DEVICES
from maskedlark.errors import InvalidTask, JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.local_training import Parameters
from maskedlark.model.onnx_file import parse
from maskedlark.reports.dataset import AdmittedSet
from maskedlark.reports.updates import UpdateForm
from maskedlark.rpc.wire import decode_report
from maskedlark.terminal.budget_table import budget_table
from maskedlark.terminal.budget_view import title_line, use_table
from tests.federated_site import DEVICES, MODEL, ROUNDS, SETTINGS, Killed, Site
from tests.patience import HANGS_S


def test_a_noise_off_job_trains_the_very_model_of_the_simulation(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit()
    job = site.run()
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    assert site.state() == site.simulated()


@pytest.mark.parametrize("dies_at", range(0, 15, 2))
def test_a_job_whose_process_dies_anywhere_ends_in_the_same_bits(tmp_path: Path, dies_at: int) -> None:
    site = Site(tmp_path)
    site.submit()
    site.helpers[dies_at // 2 % 2].dies_at = dies_at
    with pytest.raises(Killed):
        site.run()
    site.now_s += 60.0  # its lease is over
    site.scene.restart()
    assert site.run().state in (JobState.QUEUED, JobState.DONE)
    assert site.run().state is JobState.DONE
    assert site.state() == site.simulated()
    answered = site.scene.cores[0].counts().datasets
    assert answered == ROUNDS


def test_a_worker_without_which_a_round_went_on_lets_go_of_the_job(tmp_path: Path) -> None:
    """It had lost its lease: what it was about to seal is released, and its updates are deleted."""
    site = Site(tmp_path)
    site.submit()
    prepare = site.helpers[0].prepare_dataset

    def before(*arguments: Any, **named: Any) -> Any:
        found = prepare(*arguments, **named)
        site.rounds.release_before(site.job_id, 1)
        return found

    def after(*_: Any, **__: Any) -> AdmittedSet:
        return AdmittedSet(
            is_admitted=np.zeros(0, np.bool_), view_tags=np.zeros((0, 16), np.uint8), dropped=Counter()
        )

    site.helpers[0].prepare_dataset, site.helpers[1].prepare_dataset = before, after
    job = site.run()
    assert (job.state, job.rounds_done) == (JobState.QUEUED, 0)


def test_a_late_a_foreign_and_a_double_update_each_get_their_answer(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit()
    sent: list[bytes] = []
    site.run(lambda stored: sent.extend(site.devices_answer(stored)))
    with pytest.raises(ReportRejected) as late:
        site.intake.take(decode_report(sent[0]))
    assert late.value.reason is ReportReason.ROUND_OVER
    with pytest.raises(ReportRejected) as foreign:
        site.intake.take(replace(decode_report(sent[0]), round_id=bytes(32)))
    assert foreign.value.reason is ReportReason.UNKNOWN_ROUND
    assert site.intake.counts.accepted == ROUNDS * DEVICES
    counts = site.intake.counts
    came_late = counts.rejected[ReportReason.ROUND_OVER] - 1
    assert counts.duplicates + came_late == len(sent) - ROUNDS * DEVICES
    assert site.state() == site.simulated()


def test_a_round_stays_open_until_enough_devices_have_answered(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(least_devices=5, window_s=0.0)
    counts: list[tuple[int, int]] = []

    def few_at_first(stored: DeviceRound) -> None:
        if len(counts) < 4:
            site.devices_answer(stored, dies_after=2)
            counts.append((stored.round.round_index, site.rounds.count(stored.round.round_id)))
        else:
            site.devices_answer(stored)

    assert site.run(few_at_first).state is JobState.DONE
    assert counts == [(0, 2)] * 4


def test_a_job_with_a_round_that_few_devices_answered_says_that_it_waits(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(least_devices=5, window_s=1.0)
    seen: list[JobRecord] = []

    def few_until_it_waits(stored: DeviceRound) -> None:
        job = site.store.get(site.job_id)
        seen.append(job)
        if job.state is JobState.WAITING or len(seen) > 10 * HANGS_S:
            site.devices_answer(stored)
        elif stored.round.round_index == 0:
            site.devices_answer(stored, dies_after=2)
            site.now_s = stored.opened_at + 12.0

    done = site.run(few_until_it_waits)
    assert (done.state, done.stop) == (JobState.DONE, None)
    [waiting] = {one.stop for one in seen if one.state is JobState.WAITING}
    assert waiting == Stop(
        reason=FEW_DEVICES,
        cause=f"fewer than 5 devices answered round 1 of {ROUNDS} within 1 s: it stays open until so many "
        "have",
    )


def test_a_job_stops_with_the_budget_of_its_task(tmp_path: Path) -> None:
    site = Site(tmp_path, {"mechanism": "gaussian", "epsilon": 3.0})
    with pytest.raises(JobRefused) as error:
        site.submit(settings={**SETTINGS, "rounds": 400, "noise_multiplier": 1.0})
    assert error.value.reason is JobReason.BUDGET_EXHAUSTED
    site.submit(settings={**SETTINGS}, epsilon=2.5)
    job = site.run()
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    assert site.scene.cores[0].budgets_left.current()[0].epsilon >= 0.4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"widths": (4, 3, 2)}, "parameters"),
        ({"widths": (5, 1)}, "parameters|features"),
        ({"kind": "dp-fedavg2"}, "strategy"),
        ({"settings": {**SETTINGS, "sampling_rate": 1.5}}, "sampling_rate"),
        ({"settings": {**SETTINGS, "bound": {"frac_bits": 20}}}, "frac_bits"),
        ({"settings": {**SETTINGS, "cover_rate": 0.5}}, "cover_rate"),
        ({"settings": {**SETTINGS, "devices": 1}}, "devices is 1 .*at least the task's min_batch_size, 2"),
        ({"least_devices": 1}, r"^least_devices \(--least-devices\) is 1: .* the task's min_batch_size, 2"),
        ({"least_devices": 7}, "least_devices .* is 7: .*at most devices in the strategy's settings, 6"),
        ({"settings": {**SETTINGS, "nonsense": 1}}, "nonsense"),
        ({"window_s": -1.0}, "window_s"),
        ({"is_tested": True}, "is_tested"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_is_stored(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    site = Site(tmp_path)
    with pytest.raises(InvalidTask, match=told):
        site.submit(**changes)
    assert site.store.all() == ()


@pytest.mark.parametrize("wrong", [{"features": np.zeros((2, 5), np.uint8)}, {"labels": np.array([0, 2])}])
def test_an_evaluation_set_that_does_not_fit_the_model_is_refused_at_submission(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    held = BytesIO()
    np.savez(held, **{"features": np.zeros((2, 4), np.uint8), "labels": np.array([0, 1]), **wrong})
    site = Site(tmp_path)
    with pytest.raises(JobRefused) as refusal:
        site.submit(eval_set=held.getvalue())
    assert (refusal.value.reason, site.store.all()) == (JobReason.MALFORMED, ())


def test_a_round_whose_sum_helpers_may_have_charged_stays_charged_when_its_job_is_cancelled(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, {"mechanism": "gaussian"})
    site.submit(settings={**SETTINGS, "noise_multiplier": 1.0})
    site.helpers[0].dies_at = 3  # it was asked for the first sum, and nobody heard the answer
    with pytest.raises(Killed):
        site.run()
    site.store.cancel(site.job_id)
    site.now_s += 60.0
    site.run()
    job = site.store.get(site.job_id)
    assert (job.is_closed, job.rounds_done, job.rounds_charged) == (True, 0, 1)
    person = Budgets(engine=site.engine, clock=lambda: site.now_s).of_people(site.scene.task)
    assert person.uses[0].use.rounds_held == 1


def test_a_job_that_was_closed_while_its_round_was_prepared_charges_it_no_more(tmp_path: Path) -> None:
    """Its worker had stood still, and another one has told how many rounds were charged."""
    site = Site(tmp_path, {"mechanism": "gaussian"})
    site.submit(settings={**SETTINGS, "noise_multiplier": 1.0})
    prepare = site.helpers[0].prepare_dataset

    def closed_meanwhile(*arguments: Any, **named: Any) -> Any:
        found = prepare(*arguments, **named)
        site.store.cancel(site.job_id)
        assert site.run().is_closed  # by another worker
        return found

    site.helpers[0].prepare_dataset = closed_meanwhile
    job = site.run()
    assert (job.is_closed, job.rounds_charged) == (True, 0)
    assert not site.rounds.may_be_charged(site.job_id, 0)


@pytest.mark.parametrize(
    ("frac_bits", "settings"),
    [
        (24, {"noise_multiplier": 1e-6}),
        (24, {"noise_multiplier": 1.0, "bound": {"clip_norm": 2.0**-15}}),
        (30, {"noise_multiplier": 1e6}),
    ],
)
def test_noise_that_helpers_would_refuse_in_some_round_is_refused_at_submission(
    tmp_path: Path, frac_bits: int, settings: dict[str, Any]
) -> None:
    changes = {"mechanism": "gaussian", "epsilon": 1e6, "collusion_epsilon": 1e6, "frac_bits": frac_bits}
    site = Site(tmp_path, changes)
    with pytest.raises(JobRefused) as refusal:
        site.submit(settings={**SETTINGS, **settings})
    assert refusal.value.reason is JobReason.NOISE_OUT_OF_RANGE
    assert site.store.all() == ()


def test_noise_too_small_for_the_least_bound_of_a_quantile_is_refused_at_submission(tmp_path: Path) -> None:
    changes = {"mechanism": "gaussian", "epsilon": 1e6, "collusion_epsilon": 1e6}
    counted = UpdateForm(num_parameters=MODEL.size, has_clip_count=True)
    site = Site(tmp_path, {**changes, "updates": counted})
    with pytest.raises(JobRefused, match=r"clip bound 0\.000244") as refusal:
        site.submit(settings={**SETTINGS, "noise_multiplier": 0.1, "quantile": {}})
    assert refusal.value.reason is JobReason.NOISE_OUT_OF_RANGE
    site.submit(settings={**SETTINGS, "noise_multiplier": 1.0, "quantile": {}})


def test_devices_that_do_not_answer_take_no_room_in_a_round(tmp_path: Path) -> None:
    """Without cover only those that are drawn answer."""
    updates = UpdateForm(num_parameters=MODEL.size, cover=0.0)
    site = Site(tmp_path, {"updates": updates, "max_dataset_size": 6})
    with pytest.raises(InvalidTask, match=r"of which 6\.5 are expected to answer .* holds 6 at most"):
        site.submit(settings={**SETTINGS, "devices": 13})
    site.submit(settings={**SETTINGS, "devices": 12})


def test_each_job_of_a_task_is_shown_with_its_own_devices(tmp_path: Path) -> None:
    site = Site(tmp_path, {"mechanism": "gaussian"})
    site.submit(settings={**SETTINGS, "noise_multiplier": 4.0})
    site.job_id = b"g" * 16
    site.submit(settings={**SETTINGS, "devices": 60, "noise_multiplier": 4.0})
    found = Budgets(engine=site.engine, clock=lambda: site.now_s).of_people(site.scene.task)
    assert [row[3] for row in use_table(found)[1]] == ["3", "30"]
    assert title_line(found).startswith("a person in task 'conversions', ")
    data = ("--data", str(tmp_path / "adserver"))
    told = CliRunner().invoke(app, ["budget", *data, "--rounds", "3"], env={"COLUMNS": "250"})
    assert told.exit_code == 2
    assert "the task is one of updates: use `adserver job plan --strategy`" in told.output


def test_a_persons_budgets_count_all_jobs_of_the_task_and_open_ones_whole(tmp_path: Path) -> None:
    site = Site(tmp_path, {"mechanism": "gaussian"})
    site.submit(settings={**SETTINGS, "noise_multiplier": 2.0})
    budgets = Budgets(engine=site.engine, clock=lambda: site.now_s)
    before = budgets.of_people(site.scene.task)
    assert before.ad_server.spent == 0 < before.ad_server.held
    site.run()
    (after,) = budgets.of_all()
    assert after.dataset.is_person
    console = Console(width=200)
    with console.capture() as printed:
        console.print(budget_table(after))
    assert "of zeroing all updates of one person" in printed.get()
    assert after.ad_server.spent == after.ad_server.held == before.ad_server.held
    assert [one.use.what for one in after.uses] == ["dp-fedavg"]
    left = site.scene.cores[0].budgets_left.current()[0]
    assert after.ad_server.left == pytest.approx(left.epsilon)


@pytest.mark.parametrize("dies_at", [None, 8], ids=["at once", "by two processes"])
def test_the_weights_that_did_best_on_the_evaluation_set_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int | None
) -> None:
    """The loss that calibration leaves decides."""
    losses = {0: 0.6, 1: 0.5, 2: 0.7}
    tested: dict[int, Parameters] = {}

    def scored(_plan: Any, _file: bytes, parameters: Parameters, _held: Any) -> Any:
        is_known = (count for count in tested if np.array_equal(tested[count], parameters))
        rounds_done = next(is_known, len(tested))
        tested[rounds_done] = parameters
        plain = 0.6 - rounds_done / 10  # which would choose the last round
        return Evaluation(loss=plain, accuracy=0.5, calibrated_loss=losses.get(rounds_done, 0.9))

    monkeypatch.setattr(federated_run, "scores", scored)
    site = Site(tmp_path)
    held = BytesIO()
    np.savez(held, features=site.examples.features, labels=site.examples.labels)
    site.submit(eval_set=held.getvalue())
    if dies_at is not None:
        site.helpers[0].dies_at = dies_at
        with pytest.raises(Killed):
            site.run()
        site.now_s += 60.0  # its lease is over
        site.scene.restart()
    while (job := site.run()).state is JobState.QUEUED:
        pass
    assert (job.state, job.rounds_done) == (JobState.DONE, ROUNDS)
    assert isinstance(job.plan, FederatedPlan)
    files = site.files
    best = export_job(files, job.plan, ModelWeights.BEST)
    latest = export_job(files, job.plan)
    assert (best.rounds_done, latest.rounds_done) == (1, ROUNDS)
    for made in (best, latest):
        asked = write_trained_file(job.plan, files.model(), tested[made.rounds_done])
        found = [parse(file, num_features=4).initial_values for file in (made.encoded, asked)]
        assert all(map(np.array_equal, *found))


def test_without_an_evaluation_no_weights_of_a_job_on_devices_are_the_best(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit()
    job = site.run()
    assert isinstance(job.plan, FederatedPlan)
    with pytest.raises(JobRefused, match="has not been evaluated"):
        export_job(site.files, job.plan, ModelWeights.BEST)
