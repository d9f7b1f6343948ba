"""A job that trains some parameters, at the ad server: names, plan, steps, checkpoint and export."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adserver.cli.federated import read_federated_options
from adserver.training.inference import predict
from adserver.training.model_file import parse_chosen
from adserver.training.trainer import Checkpoint, Trainer
from maskedlark.autodiff.clipped_sums import ClippedSums
from maskedlark.errors import InvalidTask, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.weights import decode, quantise
from maskedlark.privacy.clip import Clip, Norm
from tests.adserver.job_world import NUM_FEATURES
from tests.adserver.training.test_submission import QUIET, plan
from tests.refusals import refused

FILE = dense_network([NUM_FEATURES, 6, 1], "relu", seed=4)
WHOLE = parse(FILE, num_features=NUM_FEATURES)
FIRST, FIRST_BIAS, LAST, LAST_BIAS = (one.name for one in WHOLE.parameters)
ALL = (FIRST, FIRST_BIAS, LAST, LAST_BIAS)


def chosen(train: Any = (), freeze: Any = ()) -> tuple[str, ...]:
    model = parse_chosen(FILE, num_features=NUM_FEATURES, train=train, freeze=freeze)
    return tuple(one.name for one in model.parameters)


@pytest.mark.parametrize(
    ("train", "freeze", "expected"),
    [
        ((), (), ALL),
        ((LAST,), (), (LAST,)),
        ((LAST, FIRST), (), (FIRST, LAST)),
        ((), (FIRST,), (FIRST_BIAS, LAST, LAST_BIAS)),
        (("*",), (FIRST, LAST), (FIRST_BIAS, LAST_BIAS)),
        ((FIRST, LAST, LAST), (FIRST,), (LAST,)),
        (ALL, (), ALL),
    ],
)
def test_names_and_patterns_choose_parameters_in_the_models_order(
    train: Any, freeze: Any, expected: tuple[str, ...]
) -> None:
    assert chosen(train, freeze) == expected
    made = plan(model=FILE, train=train, freeze=freeze)
    assert made.job.trained == (None if expected == ALL else expected)


def test_a_name_with_brackets_is_a_name() -> None:
    moved = FILE.replace(FIRST_BIAS.encode(), b"[" * len(FIRST_BIAS))
    model = parse_chosen(moved, num_features=NUM_FEATURES, train=["[" * len(FIRST_BIAS)], freeze=())
    assert [one.name for one in model.parameters] == ["[" * len(FIRST_BIAS)]


@pytest.mark.parametrize(
    ("train", "freeze", "match"),
    [
        (("nothing",), (), "train: no parameter of the model is called 'nothing'"),
        ((LAST, "no*"), (), "'no"),
        ((), ("",), "freeze: no parameter"),
        ((), ("*",), "all 4 parameters of the model are frozen"),
        ((LAST,), (LAST,), "leave at least one"),
    ],
)
def test_names_that_choose_nothing_are_refused_before_a_job_is_stored(
    train: Any, freeze: Any, match: str
) -> None:
    with refused(ModelReason.WRONG_PARAMETERS, match):
        plan(model=FILE, train=train, freeze=freeze)


def test_a_plan_of_fewer_weights_has_the_same_noise_in_each_and_less_in_all() -> None:
    whole, part = plan(model=FILE), plan(model=FILE, train=(LAST,))
    assert part.job.noise_multiplier == whole.job.noise_multiplier
    norms = [one.noise_norm(size) for one, size in ((whole, WHOLE.num_parameters), (part, 6))]
    assert norms[1] == pytest.approx(norms[0] * np.sqrt(6 / WHOLE.num_parameters))


def steps(trainer: Trainer, count: int, size: int) -> NDArray[np.float64]:
    gradient = np.linspace(-1, 1, size)
    for _ in range(count):
        trainer.step(gradient)
    return gradient


def test_a_trainer_sends_and_steps_what_is_trained_and_exports_the_rest_as_it_was() -> None:
    made = plan(QUIET, model=FILE, train=(FIRST_BIAS, LAST), epsilon=None)
    model = parse(FILE, num_features=NUM_FEATURES, trained=made.job.trained)
    trainer = Trainer(model=model, plan=made)
    sent = decode(trainer.weights(), model.parameters)
    assert [one.values.size for one in sent] == [6, 6]
    assert len(trainer.weights()) == 2 * (1 + 2 * 6)
    gradient = steps(trainer, 3, 12)
    stored = Checkpoint.decode(trainer.checkpoint().encode())
    again = Trainer(model=model, plan=made, checkpoint=stored)
    assert again.weights() == trainer.weights()
    exported = replace_parameters(FILE, model, stored.values())
    after = parse(exported, num_features=NUM_FEATURES)
    for name, before, now in zip(WHOLE.parameters, WHOLE.initial_values, after.initial_values, strict=True):
        moved = {FIRST_BIAS: gradient[:6], LAST: gradient[6:]}.get(name.name)
        expected = before if moved is None else before - 3 * 0.1 * moved.reshape(before.shape)
        assert now == pytest.approx(expected, abs=1e-6)
        assert moved is not None or now.tolist() == before.tolist()
    assert predict(exported, np.zeros((2, NUM_FEATURES), np.uint8)).shape == (2, 1)
    whole = plan(QUIET, model=FILE, epsilon=None)
    assert replace(made.job, trained=None, model_digest=whole.job.model_digest) == whole.job


def test_devices_train_all_of_a_model() -> None:
    asked: dict[str, Any] = {"model": None, "rounds": 3, "epsilon": None, "noise_multiplier": None}
    for option in ("train", "freeze"):
        with pytest.raises(InvalidTask, match="leave both out"):
            read_federated_options(strategy="dp-fedavg", layers="4,1", **{**asked, option: ["0.*"]})
    assert read_federated_options(strategy="dp-fedavg", layers="4,1", **asked) is not None


def test_a_rehearsal_trains_the_same_part() -> None:
    made = plan(QUIET, model=FILE, train=(LAST,), epsilon=None)
    model = parse(FILE, num_features=NUM_FEATURES, trained=made.job.trained)
    whole = ClippedSums(WHOLE, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    part = ClippedSums(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    draw = np.random.default_rng(3)
    features = draw.integers(0, 256, (30, NUM_FEATURES)).astype(np.uint8)
    labels = draw.integers(0, 2, 30)
    values = [quantise(value).to_float() for value in WHOLE.initial_values]
    clips = [Clip(norm=Norm.L2, bound=bound, frac_bits=32) for bound in (1e6, 0.01)]
    sums = [whole.of(values, features, labels, clips[0]).vector]
    sums += [part.of(values[2:3], features, labels, clip).vector for clip in clips]
    start = sum(one.size for one in WHOLE.parameters[:2])
    assert sums[1] == pytest.approx(sums[0][start : start + 6])
    assert 0 < np.linalg.norm(sums[2]) <= 30 * 0.01 < np.linalg.norm(sums[1])
