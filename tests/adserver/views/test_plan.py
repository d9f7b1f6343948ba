"""What is printed of a job that was accepted."""

from dataclasses import replace

import pytest

from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.training.eval_set import read_eval_set
from adserver.training.panel_note import note_panel
from adserver.views.plan import tell_path
from maskedlark.encoding.encoder import CategoryColumn, Encoder, NumberColumn
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.dense import dense_network
from tests.adserver.job_world import ENCODED_MODEL, NUM_FEATURES, eval_set_npz, plan_for, sealed

ENCODER = Encoder(
    columns=(
        *(NumberColumn(name=name, first=0, missing=0, edges=(1.0, 2.0)) for name in "abc"),
        CategoryColumn(name="device", first=1, missing=0, categories=("phone", "tv", "watch")),
    )
)
PLAN = plan_for(sealed())
SUBMISSION = Submission(
    model=ENCODED_MODEL,
    loss="binary_cross_entropy_with_logits",
    rounds=1,
    batch_size=None,
    epsilon=1.0,
    noise_multiplier=None,
    optimizer=Optimizer(learning_rate=0.1),
    schedule=Schedule(),
    eval_set=None,
    eval_every=None,
)


def with_encoder() -> TrainingPlan:
    task = replace(PLAN.task, encoder=ENCODER.digest)
    return replace(PLAN, task=task, job=replace(PLAN.job, task_id=task.task_id))


def test_a_model_is_compared_with_the_encoder_that_its_task_names(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[bytes] = []

    def find(task_id: bytes) -> Encoder:
        asked.append(task_id)
        return ENCODER

    plan = with_encoder()
    tell_path(SUBMISSION, plan, find)
    told = capsys.readouterr()
    assert (told.out, asked) == ("", [plan.task.task_id])
    assert "helpers compute the model exactly" in told.err
    assert "warning: the model reads the codes of words at feature 3 (device) as numbers" in told.err
    tell_path(SUBMISSION, PLAN, find)
    assert len(asked) == 1


def test_a_server_that_does_not_say_the_encoder_now_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def find(_: bytes) -> Encoder:
        raise JobRefused(JobReason.UNAUTHORIZED, "no")

    tell_path(replace(SUBMISSION, is_standardised=False), with_encoder(), find)
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("is_python", [False, True])
def test_advice_is_given_in_the_words_of_the_face_that_is_used(
    capsys: pytest.CaptureFixture[str], is_python: bool
) -> None:
    tell_path(replace(SUBMISSION, optimizer=None), PLAN, lambda _: None, is_python=is_python)
    told = capsys.readouterr().err
    in_python = ("eval_set=FILE", "standardise=False", "client.rehearse")
    for word in (*in_python, "--eval-set", "--as-it-is", "adserver job"):
        assert (word in told) == (is_python == (word in in_python))


def test_a_job_on_the_general_path_is_told_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    model = dense_network([NUM_FEATURES, 400, 1], "gelu", seed=1)

    def told(rounds: int) -> list[str]:
        plan = replace(PLAN, job=replace(PLAN.job, rounds=rounds))
        tell_path(replace(SUBMISSION, model=model), plan, lambda _: None)
        return [line for line in capsys.readouterr().err.splitlines() if "processor" in line]

    [few], [many] = told(1), told(1_000_000)
    assert few.startswith("1 round of ")
    assert "processor seconds" in few
    assert many.startswith("1,000,000 rounds of ")
    assert "processor seconds" not in many
    tell_path(SUBMISSION, PLAN, lambda _: None)
    assert "processor" not in capsys.readouterr().err


def test_a_job_is_told_that_its_evaluation_set_trained_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    panel = eval_set_npz(sealed())
    warm = note_panel(ENCODED_MODEL, read_eval_set(panel))
    job = replace(SUBMISSION, eval_set=panel, is_standardised=False)
    line = "warning: the model was trained on the records of this evaluation set (a warm start)"
    tell_path(replace(job, model=warm), PLAN, lambda _: None)
    assert line in capsys.readouterr().err
    for other in (job, replace(job, model=warm, eval_set=None)):
        tell_path(other, PLAN, lambda _: None)
        assert line not in capsys.readouterr().err
