"""A submission: what it becomes, and one refusal for each way that it can be wrong."""

import re
from collections import Counter
from dataclasses import fields, replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from adserver.records.dataset_state import DatasetState
from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.store.datasets import Dataset
from adserver.training.cost import job_epsilons
from adserver.training.eval_set import read_eval_set
from adserver.training.submission import plan_job
from maskedlark.errors import InvalidModel, InvalidTask, JobReason, JobRefused, MaskedLarkError, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task
from tests.adserver.job_world import ENCODED_MODEL, MODEL, NUM_FEATURES
from tests.builders import NOW, world
from tests.onnx_builders import encoded, node, weights
from tests.refusals import refused

JOB_ID = bytes(range(16))
SIZE = 1_000


def npz(**arrays: Any) -> bytes:
    stored = BytesIO()
    np.savez(stored, **arrays)
    return stored.getvalue()


def npz_of(records: int = 3, width: int = NUM_FEATURES, labels: Any = None) -> bytes:
    chosen = np.zeros(records, np.uint32) if labels is None else labels
    return npz(features=np.zeros((records, width), np.uint8), labels=chosen)


def task_of(**changes: Any) -> Task:
    return world(num_features=NUM_FEATURES, **{"mechanism": "gaussian", "min_batch_size": 10, **changes}).task


TASK = task_of()
QUIET = task_of(mechanism="none")


def dataset_of(task: Task, **changes: Any) -> Dataset:
    dataset = Dataset(
        handle=bytes(16),
        task_id=task.task_id,
        state=DatasetState.COMMITTED,
        created_at=NOW,
        received=SIZE,
        size=SIZE,
        view_mismatch=0,
        dataset_id=bytes(32),
        dropped=(Counter(), Counter()),
    )
    return replace(dataset, **changes)


SUBMISSION = Submission(
    model=ENCODED_MODEL,
    loss="binary_cross_entropy_with_logits",
    rounds=20,
    batch_size=100.0,
    epsilon=2.0,
    noise_multiplier=None,
    optimizer=Optimizer(kind=OptimizerKind.SGD, learning_rate=0.1),
    schedule=Schedule(),
    eval_set=npz_of(),
    eval_every=None,
    is_allocated=False,
)


def plan(
    task: Task = TASK,
    dataset: Dataset | None = None,
    now_s: float = NOW,
    already: tuple[Charge, ...] = (),
    **changes: Any,
) -> Any:
    return plan_job(
        replace(SUBMISSION, **changes),
        task=task,
        dataset=dataset or dataset_of(task),
        job_id=JOB_ID,
        now_s=now_s,
        already=already,
    )


def test_an_epsilon_becomes_the_least_noise_that_keeps_within_it() -> None:
    made = plan()
    cost = job_epsilons(made, made.job.rounds).ad_server
    assert 1.9 < cost <= 2.0
    less = replace(made, job=replace(made.job, noise_multiplier=made.job.noise_multiplier * 0.97))
    assert job_epsilons(less, made.job.rounds).ad_server > 2.0


def test_an_epsilon_above_the_whole_budget_is_refused() -> None:
    with pytest.raises(InvalidTask, match="epsilon is 1000, but the whole budget"):
        plan(epsilon=1_000.0)
    made = plan(task_of(collusion_epsilon=100.0), epsilon=TASK.epsilon)
    assert job_epsilons(made, made.job.rounds).ad_server <= TASK.epsilon


def test_an_epsilon_of_which_less_is_left_is_refused_with_what_is_left() -> None:
    of = task_of(epsilon=4.0, collusion_epsilon=12.0)
    first = plan(of, batch_size=None, epsilon=3.0)
    held = (first.job.charge(of, first.job.rounds),)
    with pytest.raises(JobRefused, match=r"epsilon 3 was asked for, but .*, 4 in all leave") as refusal:
        plan(of, batch_size=None, epsilon=3.0, already=held)
    assert refusal.value.reason is JobReason.BUDGET_EXHAUSTED
    told = re.search(r"--epsilon ([0-9.]+), epsilon=\1\)", str(refusal.value))
    assert told is not None
    left = float(told[1])
    second = plan(of, batch_size=None, epsilon=left, already=held)
    assert 0.95 * left < job_epsilons(second, second.job.rounds).ad_server <= left < 3.0
    both = spent([*held, second.job.charge(of, second.job.rounds)], of.delta)
    assert 0.97 * of.epsilon < both.ad_server <= of.epsilon


def test_an_epsilon_that_the_budget_with_a_helper_forbids_is_refused_with_what_it_allows() -> None:
    of = task_of(epsilon=4.0, collusion_epsilon=4.0)
    with pytest.raises(JobRefused, match=r"with one helper, 4, leaves this job .*larger batches") as refusal:
        plan(of, epsilon=3.0)
    told = re.search(r"ask for epsilon ([0-9.]+) ", str(refusal.value))
    assert told is not None
    made = plan(of, epsilon=float(told[1]))
    assert 3.9 < job_epsilons(made, made.job.rounds).colluding <= 4.0


def test_a_plan_holds_what_was_asked_for() -> None:
    made = plan(epsilon=None, noise_multiplier=3.0)
    assert made.job.noise_multiplier == 3.0
    assert made.denominator == pytest.approx(100.0)
    assert made.num_parameters == MODEL.num_parameters
    assert (made.job.rounds, made.job.loss, made.job.model_digest) == (
        20,
        Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        MODEL.digest,
    )
    assert (made.job.task_id, made.job.dataset_id, made.job.job_id, made.dataset_size) == (
        TASK.task_id,
        bytes(32),
        JOB_ID,
        SIZE,
    )


def test_without_a_batch_size_every_round_takes_the_whole_dataset() -> None:
    assert plan(QUIET, batch_size=None, epsilon=None).job.sampling_rate == 1.0


def test_long_jobs_are_evaluated_about_fifty_times() -> None:
    made = plan(QUIET, epsilon=None, rounds=1_000)
    assert 40 <= sum(made.is_evaluated(number) for number in range(1_001)) <= 60


def test_rounds_cost_nothing_before_the_first() -> None:
    assert job_epsilons(plan(), 0).ad_server == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dataset": dataset_of(QUIET)}, JobReason.UNKNOWN_DATASET),
        ({"dataset": dataset_of(TASK, state=DatasetState.COMMITTING)}, JobReason.UNKNOWN_DATASET),
        ({"now_s": TASK.expires_at}, JobReason.TASK_EXPIRED),
        ({"batch_size": 9.0}, JobReason.MALFORMED),
        ({"batch_size": SIZE + 1.0}, JobReason.MALFORMED),
        ({"batch_size": float("nan")}, JobReason.MALFORMED),
        ({"dataset": dataset_of(TASK, size=5), "batch_size": None}, JobReason.MALFORMED),
        ({"epsilon": None}, JobReason.NOISE_OUT_OF_RANGE),
        ({"noise_multiplier": 1.0}, JobReason.NOISE_OUT_OF_RANGE),
        ({"task": QUIET}, JobReason.NOISE_OUT_OF_RANGE),
        ({"epsilon": None, "noise_multiplier": 0.0}, JobReason.NOISE_OUT_OF_RANGE),
        ({"epsilon": None, "noise_multiplier": 0.05}, JobReason.BUDGET_EXHAUSTED),
        (
            {
                "task": task_of(mechanism="none", clip_norm=1024.0, frac_bits=40, max_dataset_size=1 << 24),
                "epsilon": None,
            },
            JobReason.OVERFLOW,
        ),
        ({"eval_set": b"no npz"}, JobReason.MALFORMED),
        ({"eval_set": npz(features=np.zeros((2, 4), np.uint8))}, JobReason.MALFORMED),
        ({"eval_set": npz(features=np.zeros((2, 4)), labels=np.zeros(2))}, JobReason.MALFORMED),
        ({"eval_set": npz_of(width=5)}, JobReason.MALFORMED),
        ({"eval_set": npz_of(records=0)}, JobReason.MALFORMED),
        ({"eval_set": npz_of(labels=np.zeros(2))}, JobReason.MALFORMED),
        ({"eval_set": npz_of(labels=np.array([0, 1, 2]))}, JobReason.MALFORMED),
        ({"eval_set": npz_of(labels=np.array([0, 1, np.nan]))}, JobReason.MALFORMED),
        ({"eval_set": npz_of(labels=np.array(["0", "1", "0"]))}, JobReason.MALFORMED),
        ({"eval_set": npz_of(labels=np.array([None, None, None]))}, JobReason.MALFORMED),
    ],
)
def test_what_the_helpers_or_the_trainer_would_choke_on_is_refused_before_it_is_stored(
    changes: dict[str, Any], reason: JobReason
) -> None:
    if reason is JobReason.OVERFLOW:
        changes = {**changes, "dataset": dataset_of(changes["task"], size=1 << 24)}
    with pytest.raises(JobRefused) as refusal:
        plan(**changes)
    assert refusal.value.reason is reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": b"no onnx"}, ModelReason.NOT_ONNX),
        ({"model": dense_network([5, 1], "relu", seed=0)}, ModelReason.WRONG_SHAPE),
        ({"loss": "hinge"}, ModelReason.UNKNOWN_LOSS),
        ({"loss": "cross_entropy"}, ModelReason.WRONG_LOSS),
    ],
)
def test_a_model_or_loss_that_does_not_fit_is_refused(changes: dict[str, Any], reason: ModelReason) -> None:
    with pytest.raises(InvalidModel) as refusal:
        plan(**changes)
    assert refusal.value.reason is reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1_000_001}, "rounds"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"eval_every": -1}, "eval_every"),
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        plan(**changes)


def test_an_eval_set_of_another_encoder_is_refused_and_one_that_names_none_is_not() -> None:
    ours, other = bytes(range(32)), bytes(32)
    arrays = {"features": np.zeros((3, NUM_FEATURES), np.uint8), "labels": np.array([0, 1, 0])}
    task = task_of(encoder=ours)
    for named in ({}, {"encoder": np.frombuffer(ours, np.uint8)}):
        plan(task, eval_set=npz(**arrays, **named))
    of_another = npz(**arrays, encoder=np.frombuffer(other, np.uint8))
    with refused(JobReason.MALFORMED, "encoder 0{12}, but the task's is 000102030405: encode it again"):
        plan(task, eval_set=of_another)
    plan(task_of(), eval_set=of_another)


def test_an_eval_set_is_read_as_it_was_written() -> None:
    features = np.arange(8, dtype=np.uint8).reshape(2, 4)
    read = read_eval_set(npz(features=features, labels=np.array([0.5, 2.0])))
    assert read.features.tolist() == features.tolist()
    assert read.labels.tolist() == [0.5, 2.0]
    read.check_fits(MODEL, Loss.POISSON)
    with pytest.raises(JobRefused):
        read.check_fits(MODEL, Loss.BINARY_CROSS_ENTROPY)


def test_records_are_allocated_unless_something_else_is_asked_for() -> None:
    asked = {field.name: getattr(SUBMISSION, field.name) for field in fields(SUBMISSION)}
    del asked["is_allocated"]
    assert Submission(**asked).is_allocated


# --- correlated noise

CORRELATED: dict[str, Any] = {"is_allocated": True, "noise": StepNoise.CORRELATED, "epsilon": None}


def test_correlated_noise_is_fitted_to_the_optimizer() -> None:
    of = task_of(epsilon=16.0, collusion_epsilon=32.0)
    kept = {
        kind: plan(
            of, noise_multiplier=8.0, **{**CORRELATED, "optimizer": Optimizer(kind=kind, learning_rate=0.1)}
        ).job.carried
        for kind in OptimizerKind
    }
    assert kept[OptimizerKind.SGD] == kept[OptimizerKind.ADAGRAD] < kept[OptimizerKind.MOMENTUM]
    assert kept[OptimizerKind.ADAM] == kept[OptimizerKind.MOMENTUM]
    assert plan(of, noise_multiplier=8.0, **CORRELATED, carried=7).job.carried == 7


def test_an_epsilon_becomes_the_least_correlated_noise() -> None:
    of = task_of(epsilon=16.0, collusion_epsilon=32.0)
    made = plan(of, **{**CORRELATED, "epsilon": 2.0})
    assert 1.95 < job_epsilons(made, made.job.rounds).ad_server <= 2.0
    assert made.job.is_sample_secret


def test_a_job_that_stops_with_its_budget_is_fitted_to_the_rounds_it_has() -> None:
    of = task_of(epsilon=16.0, collusion_epsilon=32.0)
    made = plan(of, noise_multiplier=8.0, rounds=None, is_until_budget=True, **CORRELATED)
    assert made.job.rounds > 20
    assert job_epsilons(made, made.job.rounds).colluding <= 32.0


def test_a_job_until_its_budget_names_its_noise_and_no_rounds() -> None:
    until: dict[str, Any] = {"rounds": None, "is_until_budget": True}
    for rounds, found in ((20, 20), (None, 120)):
        made = plan(QUIET, epsilon=None, rounds=rounds)
        assert (made.job.rounds, made.is_until_budget) == (found, False)
    for task, noise, why in (
        (TASK, {"epsilon": 2.0}, "until its budget is spent requires a noise multiplier: give one"),
        (TASK, {"epsilon": None}, "until its budget is spent requires a noise multiplier: give one"),
        (QUIET, {"epsilon": None}, "the task adds no noise, so no budget ends the job: leave out until_bud"),
    ):
        with pytest.raises(JobRefused, match=why) as refusal:
            plan(task, **{**until, **noise})
        assert refusal.value.reason is JobReason.NOISE_OUT_OF_RANGE
    with pytest.raises(InvalidTask, match="at most one of rounds and until_budget"):
        plan(**{**until, "rounds": 7, "epsilon": None, "noise_multiplier": 8.0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": None}, "all records"),
        ({"is_allocated": False}, "not proven for Poisson"),
        ({"noise": StepNoise.INDEPENDENT, "carried": 5}, "`carried` requires correlated noise"),
        ({"adaptive_clip": AdaptiveClip(quantile=0.5, learning_rate=0.2, initial=0.1)}, "adaptive clip"),
    ],
)
def test_correlated_noise_where_it_cannot_be_is_refused_with_what_fits(
    changes: dict[str, Any], words: str
) -> None:
    of = task_of(epsilon=16.0, collusion_epsilon=32.0)
    with pytest.raises(MaskedLarkError, match=words):
        plan(of, **{**CORRELATED, "noise_multiplier": 8.0, **changes})


def test_a_task_without_noise_has_none_to_correlate() -> None:
    with pytest.raises(JobRefused, match="independent noise"):
        plan(QUIET, **CORRELATED)


ON_THE_GENERAL_PATH = encoded(
    [node("Erf", ["x"], ["h"]), node("Gemm", ["h", "w", "b"], ["y"])],
    [weights("w", NUM_FEATURES, 1), weights("b", 1)],
    width=NUM_FEATURES,
)


@pytest.mark.parametrize("changes", [{}, {"is_allocated": True, "noise": StepNoise.CORRELATED}])
def test_a_model_on_the_general_path_is_refused_with_what_forces_it_there(changes: dict[str, Any]) -> None:
    with pytest.raises(JobRefused, match=r"the operator Erf: use Relu.*--public-samples") as refusal:
        plan(model=ON_THE_GENERAL_PATH, **changes)
    assert refusal.value.reason is JobReason.MALFORMED


def test_a_model_on_the_general_path_trains_with_public_samples() -> None:
    assert not plan(model=ON_THE_GENERAL_PATH, is_sample_public=True).job.is_sample_secret
    plan(QUIET, epsilon=None, model=ON_THE_GENERAL_PATH)
