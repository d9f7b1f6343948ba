"""Every message of an ad server comes back from its JSON as the value that it was made of."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from adserver.measuring.estimate import NOT_KNOWN, NoInterval
from adserver.measuring.evaluation_result import EvaluationResult, read
from adserver.messages.base import Message
from adserver.messages.budget import BudgetMessage, EpsilonsMessage
from adserver.messages.dataset import DatasetItem
from adserver.messages.evaluation import EvaluationMessage
from adserver.messages.federated import FederatedForecastMessage, LocalForecastMessage, SubmitFederatedJob
from adserver.messages.job import JobItem, RoundsPage, job_detail, job_facts
from adserver.messages.plan import PlanJob, PlanMessage
from adserver.messages.submission import SubmitJob
from adserver.messages.task import TaskDetail, TaskEncoder
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobEvent, JobState
from adserver.records.round_figures import NOT_EVALUATED
from adserver.records.submissions import FederatedSubmission, PlanConstraints, PlanRequest, Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.federated.forecast import forecast
from adserver.training.local_jobs import forecast_local, plan_local
from adserver.training.planning import plan_job
from adserver.views.job_comparison import job_figures
from maskedlark.canonical import build
from maskedlark.encoding.encoder import CategoryColumn, Encoder
from maskedlark.errors import InvalidTask
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import PlannedJob
from maskedlark.releases.sampling import StepNoise
from tests.adserver.job_world import ENCODED_MODEL, MODEL
from tests.adserver.painted import OF, Painted, painted
from tests.federated_site import SETTINGS, WIDTHS, Site


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painted]:
    made = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    yield made
    made.close()


def sent(message: Message) -> Any:
    """The message as it arrives."""
    text = message.model_dump_json()
    assert json.loads(text) == message.model_dump(mode="json")
    return type(message).model_validate_json(text, strict=True)


def test_an_encoder_comes_back_and_another_is_refused(of: Painted) -> None:
    encoder = Encoder(
        columns=(CategoryColumn(name="device", first=0, missing=2, categories=("phone", "tv")),)
    )
    task = of.site.tasks.all()[0].bundle.task
    named = replace(task, encoder=encoder.digest)
    assert sent(TaskEncoder.of(encoder)).verify(named) == encoder
    assert sent(TaskEncoder.of(None)).verify(task) is None
    for message, of_task in ((TaskEncoder.of(None), named), (TaskEncoder.of(encoder), task)):
        with pytest.raises(InvalidTask, match="not the one that the task names"):
            sent(message).verify(of_task)


def test_tasks_datasets_and_jobs_come_back(of: Painted) -> None:
    for task in of.site.tasks.all():
        counts = of.site.reports.counts(task.task_id)
        back = sent(TaskDetail.of(task, counts))
        assert (back.verify(), back.counts()) == (task, counts)
    for dataset in of.site.datasets.all():
        assert sent(DatasetItem.of(dataset)).value() == dataset
    for job in of.jobs.all():
        back = sent(JobItem.of(job)).value()
        assert (back.plan, back.state, back.stop, back.rounds_done, back.name, back.note) == (
            job.plan, job.state, job.stop, job.rounds_done, job.name, job.note,
        )  # fmt: skip
        figures = of.jobs.history(job.job_id)
        assert sent(RoundsPage(items=figures, next_after_rounds=None)).items == figures
        assert sent(job_detail(job, of.jobs.last_evaluated(job.job_id))).job_id == job.job_id


def test_a_job_that_was_not_evaluated_has_no_figures_but_its_rounds(of: Painted) -> None:
    names = ("loss", "calibrated_loss", "accuracy", "auc", "auc_low", "auc_high")
    job = next(one for one in of.jobs.all() if one.rounds_done)
    facts = job_facts(job, None).model_dump()
    assert (facts["clip_norm"], facts["parameters"]) == (OF.of.task.clip_norm, MODEL.num_parameters)
    assert [facts[name] for name in names] == [getattr(NOT_EVALUATED, name) for name in names] == [None] * 6
    figures = job_figures(job, None, None)
    best = ("best_loss", "best_calibrated_loss", "best_rounds")
    assert [figures[name] for name in (*names[:4], *best)] == [None] * 7
    evaluated = replace(NOT_EVALUATED, rounds_done=3, loss=0.5, auc=0.7)
    assert job_figures(job, evaluated, evaluated).items() >= {
        "loss": 0.5, "accuracy": None, "auc": 0.7, "best_loss": 0.5, "best_rounds": 3,
    }.items()  # fmt: skip


def test_budgets_come_back_with_a_forecast(of: Painted) -> None:
    planned = PlannedJob(rounds=5, batch_size=None, noise_multiplier=50.0)
    for dataset in of.site.datasets.all():
        if dataset.dataset_id is None:
            continue
        budget = of.site.budgets.of(dataset, planned)
        back = sent(BudgetMessage.of(budget)).value(budget.dataset.task)
        assert (back.ad_server, back.colluding, back.dataset, back.next_epsilon) == (
            budget.ad_server, budget.colluding, budget.dataset, budget.next_epsilon,
        )  # fmt: skip
        assert back.forecast is not None
        assert budget.forecast is not None
        assert back.forecast.alone == budget.forecast.alone
        assert [(one.spent, one.held) for one in back.uses] == [(one.spent, one.held) for one in budget.uses]


def test_requests_for_jobs_come_back_with_their_files() -> None:
    asked = PlanRequest(
        model=bytes(range(256)),
        wish=PlanConstraints(rounds=3, batch_size=None, noise_multiplier=0.5),
        noise=StepNoise.CORRELATED,
        carried=7,
        train=("head.*", "ü"),
        freeze=("head.bias",),
        dataset="3f",
    )
    assert PlanJob.model_validate_json(PlanJob.of(asked).model_dump_json()).value() == asked
    submission = Submission(
        model=ENCODED_MODEL,
        loss="mean_squared_error",
        rounds=3,
        batch_size=None,
        epsilon=1.5,
        noise_multiplier=None,
        optimizer=build(Optimizer, {"learning_rate": 0.5}),
        schedule=Schedule(),
        eval_set=b"\xff\xfe",
        eval_every=None,
        is_clip_per_layer=True,
        train=("head.*", "ü"),
        freeze=("head.bias",),
        is_standardised=False,
        task="ab",
        name="wide",
        note="two layers",
    )
    until = replace(submission, rounds=None, noise_multiplier=4.0, is_until_budget=True)
    for one in (submission, until):
        assert SubmitJob.model_validate_json(SubmitJob.of(one).model_dump_json()).value() == one


def test_what_is_not_known_of_a_model_comes_back() -> None:
    readings = read(np.zeros((2, 10)), mechanism=Mechanism.NONE, noise_scale=0.0, is_of_classes=False)
    unbounded = Epsilons(ad_server=math.inf, colluding=math.inf)
    here = EvaluationResult(
        query_id="01" * 16, task_id="02" * 32, dataset_id="03" * 32, mechanism=Mechanism.NONE, records=0,
        delta=1e-6, cost=unbounded, dataset_spent=unbounded, is_of_classes=False, metrics=readings.metrics,
        roc=readings.roc, pr=readings.pr, calibration=readings.calibration, num_bins=10, noise_scale=0.0,
    )  # fmt: skip
    assert repr(replace(NOT_KNOWN, no_interval=NoInterval.RECORDS)) in map(
        repr, (one.estimate for one in here.metrics)
    )
    assert repr(sent(EvaluationMessage.of(here)).value()) == repr(here)


@pytest.mark.parametrize("value", ['"1"', "true", "-1", "NaN", "[1]", '""'])
def test_an_epsilon_is_a_number_or_null_and_nothing_else(value: str) -> None:
    text = '{"ad_server": null, "colluding": %s}'
    read_back = EpsilonsMessage.model_validate_json(text % "2", strict=True)
    assert read_back.value() == Epsilons(ad_server=math.inf, colluding=2.0)
    with pytest.raises(ValidationError):
        EpsilonsMessage.model_validate_json(text % value, strict=True)


@pytest.mark.parametrize(
    "change", [{"rounds": "3"}, {"rounds": 3.5}, {"extra": 1}, {"loss": 1}, {"epsilon": "1"}]
)
def test_a_request_is_of_its_types_and_has_no_other_field(change: dict[str, Any]) -> None:
    body = {"model": "AAAA", "loss": "a", "optimizer": {"kind": "adam", "learning_rate": 0.1}}
    SubmitJob.model_validate_json(json.dumps(body))
    with pytest.raises(ValidationError) as refused:
        SubmitJob.model_validate_json(json.dumps({**body, **change}))
    assert "input_value" not in str(refused.value)


def test_a_plan_comes_back(of: Painted) -> None:
    dataset = OF.datasets[0].dataset_id.hex()
    asked = PlanRequest(
        model=ENCODED_MODEL,
        wish=PlanConstraints(rounds=4, batch_size=40.0, noise_multiplier=None),
        dataset=dataset,
    )
    planned = plan_job(of.engine, asked)
    back = sent(PlanMessage.of(planned, asked)).value(OF.of.task)
    assert (back.plan, back.compared) == (planned.plan, planned.compared)


def test_a_job_on_devices_and_its_forecast_come_back(tmp_path: Path) -> None:
    asked = FederatedSubmission(
        kind="dp-fedavg", settings=SETTINGS, widths=WIDTHS, epsilon=2.5, window_s=0.0, least_devices=None,
        model=b"\xff", task="ab",
    )  # fmt: skip
    assert (
        SubmitFederatedJob.model_validate_json(SubmitFederatedJob.of(asked).model_dump_json()).value()
        == asked
    )
    for task in ({"mechanism": "gaussian"}, {}):
        site = Site(tmp_path / str(len(task)), task)
        submission = replace(asked, epsilon=2.5 if task else None, model=None, task="")
        planned = forecast(submission, task=site.scene.task, already=(), now_s=site.now_s)
        assert sent(FederatedForecastMessage.of(planned)).value() == planned


@pytest.mark.parametrize("epsilon", [2.0, None])
def test_a_job_without_helpers_and_its_forecast_come_back(of: Painted, epsilon: float | None) -> None:
    asked = FederatedSubmission(
        kind="draw-and-discard", settings={"instances": 4, "learning_rate": 0.01, "epsilon": epsilon},
        widths=(4, 2), is_without_helpers=True, updates_each=3,
    )  # fmt: skip
    planned = forecast_local(asked)
    assert sent(LocalForecastMessage.of(planned)).value() == planned
    plan = plan_local(asked, b"?" * 16)
    job = JobRecord(
        plan=plan, submitted_at_s=1.0, state=JobState.OPEN, stop=None, rounds_done=0, is_closed=True,
        rounds_charged=None, lease_until_s=0.0, updates=7, in_flight=0.5,
        eval_set_digest=b"e" * 32,
    )  # fmt: skip
    assert sent(JobItem.of(job)).value() == job
    detail = sent(job_detail(job, None))
    assert (detail.updates, detail.in_flight, detail.can) == (7, 0.5, (JobEvent.CANCEL,))
    assert (detail.epsilon, detail.instances) == (epsilon or math.inf, 4)
