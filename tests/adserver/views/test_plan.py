"""What is printed of a job that was accepted."""

from dataclasses import replace
from io import BytesIO

import numpy as np
import onnx
import pytest
import torch

from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.training.as_onnx import as_onnx
from adserver.training.defaults import ROUNDS
from adserver.training.eval_set import read_eval_set
from adserver.training.panel_note import note_panel
from adserver.views.plan import Remark, remarks_of_job, tell_path
from maskedlark.encoding.encoder import CategoryColumn, Encoder, NumberColumn
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.onnx_file import replace_parameters
from tests.adserver.job_world import ENCODED_MODEL, MODEL, NUM_FEATURES, eval_set_npz, plan_for, sealed

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
def test_advice_is_given_in_the_words_of_the_face_that_is_used(*, is_python: bool) -> None:
    job = replace(SUBMISSION, optimizer=None)
    told = "\n".join(map(str, remarks_of_job(job, PLAN, lambda _: None, is_python=is_python)))
    in_python = ("eval_set=FILE", "standardise=False", "client.rehearse")
    for word in (*in_python, "--eval-set", "--as-it-is", "adserver job"):
        assert (word in told) == (is_python == (word in in_python))


@pytest.mark.parametrize("is_python", [False, True])
def test_rounds_that_the_rule_gives_a_hidden_layer_are_told(*, is_python: bool) -> None:
    def told(named: int | None, rounds: int) -> str:
        plan = replace(PLAN, job=replace(PLAN.job, rounds=rounds))
        job = replace(SUBMISSION, rounds=named, optimizer=None)
        return "\n".join(map(str, remarks_of_job(job, plan, lambda _: None, is_python=is_python)))

    line = "300 rounds, by the rule for 40 reports and an untrained hidden layer without tables"
    assert line in told(None, 300)
    assert f"2.5 times the time ({'rounds=' if is_python else '--rounds '}120 takes less)" in told(None, 300)
    for named, rounds in ((300, 300), (None, ROUNDS)):
        assert "rounds, by the rule" not in told(named, rounds)


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
    remarks = [*remarks_of_job(replace(SUBMISSION, model=model), PLAN, lambda _: None)]
    [path] = [one for one in remarks if "general path" in one.text]
    assert path.is_warning
    assert "helpers refuse to evaluate such a model (`adserver evaluate`, client.evaluate)" in path.text
    exact = Remark(text="helpers compute the model exactly")
    assert exact in [*remarks_of_job(SUBMISSION, PLAN, lambda _: None)]
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


def test_weights_that_know_the_panel_are_told_of_the_rules_rate_and_of_a_shorter_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    features, stored = np.random.default_rng(1).integers(0, 256, (200, 4), np.uint8), BytesIO()
    np.savez(stored, features=features, labels=(features[:, 0] > 127).astype(np.int64))
    panel = stored.getvalue()
    values = [np.array([[9, 0, 0, 0]], np.float32), np.array([-4.5], np.float32)]
    trained = replace_parameters(ENCODED_MODEL, MODEL, values)
    line = "note: the weights know the panel's labels already"
    for model, rate in ((trained, None), (trained, Optimizer(learning_rate=0.1)), (ENCODED_MODEL, None)):
        job = replace(SUBMISSION, model=model, eval_set=panel, optimizer=rate)
        tell_path(job, replace(PLAN, optimizer=Optimizer(learning_rate=0.4)), lambda _: None)
        told = capsys.readouterr().err
        assert (line in told) == (model is trained and rate is None)
        assert ("a rate such as 0.04" in told) == (line in told)


def test_layers_that_behave_otherwise_in_training_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(torch.relu(self.norm(x)))
            return found

    for model, is_told in ((as_onnx(Normed(), 4), True), (ENCODED_MODEL, False)):
        tell_path(replace(SUBMISSION, model=model), PLAN, lambda _: None)
        assert ("batch normalisation uses the means" in capsys.readouterr().err) == is_told


def test_weighted_classes_are_told_that_predictions_do_not_add_up_yet() -> None:
    def said(weights: list[float]) -> str:
        output = onnx.ModelProto.FromString(ENCODED_MODEL).graph.output[0].name
        heads = Heads.of([{"output": output, "targets": [0, 1], "weights": weights}])
        plan = replace(PLAN, job=replace(PLAN.job, loss=heads))
        remarks = remarks_of_job(replace(SUBMISSION, loss=heads), plan, lambda _: None, is_python=True)
        return "\n".join(map(str, remarks))

    line = (
        "the loss of label 1 is multiplied by 5, that of label 0 by 1: predictions will not add up until the "
        "model is calibrated, by job.calibrate(panel=FILE)"
    )
    assert line in said([1, 5])
    assert "multiplied" not in said([2, 2])
