"""The trainer: its checkpoints continue bit for bit, and its steps are torch's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.training.trainer import Checkpoint, Trainer, split
from maskedlark.canonical import build, decode, encode
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.model.weights import decode as decode_weights
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from tests.adserver.job_world import MODEL, Sealed, plan_for, sealed

OF = sealed()
SETTINGS = [(kind, schedule) for kind in OptimizerKind for schedule in ScheduleKind]


def plan(
    kind: OptimizerKind = OptimizerKind.ADAM, schedule: ScheduleKind = ScheduleKind.COSINE, of: Sealed = OF
) -> TrainingPlan:
    return plan_for(
        of,
        rounds=12,
        optimizer=Optimizer(kind=kind, learning_rate=0.1),
        schedule=Schedule(kind=schedule, step_rounds=3, warmup_rounds=4, final_factor=0.1),
    )


def gradients(count: int) -> list[NDArray[np.float64]]:
    return list(np.random.default_rng(5).normal(size=(count, MODEL.num_parameters)))


@pytest.mark.parametrize(("kind", "schedule"), SETTINGS)
def test_a_trainer_restored_from_any_checkpoint_goes_on_with_the_same_bits(
    kind: OptimizerKind, schedule: ScheduleKind
) -> None:
    steps = gradients(12)
    straight = Trainer(model=MODEL, plan=plan(kind, schedule))
    stored = [straight.checkpoint().encode()]
    rates = []
    for gradient in steps:
        rates.append(straight.step(gradient))
        stored.append(straight.checkpoint().encode())
    for at, checkpoint in enumerate(stored):
        resumed = Trainer(model=MODEL, plan=plan(kind, schedule), checkpoint=Checkpoint.decode(checkpoint))
        assert resumed.rounds_done == at
        assert [resumed.step(gradient) for gradient in steps[at:]] == rates[at:]
        assert resumed.checkpoint().encode() == stored[-1]
        assert resumed.weights() == straight.weights()


def test_the_learning_rate_follows_the_schedule() -> None:
    trainer = Trainer(model=MODEL, plan=plan(OptimizerKind.SGD, ScheduleKind.LINEAR_WARMUP))
    assert [trainer.step(gradient) for gradient in gradients(6)] == pytest.approx(
        [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]
    )


def test_a_plain_step_is_the_learning_rate_times_the_gradient() -> None:
    trainer = Trainer(model=MODEL, plan=plan(OptimizerKind.SGD, ScheduleKind.CONSTANT))
    (gradient,) = gradients(1)
    trainer.step(gradient)
    for before, after, part in zip(
        MODEL.initial_values, trainer.values(), split(gradient, MODEL.parameters), strict=True
    ):
        np.testing.assert_allclose(after, before - np.float32(0.1) * part, rtol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.25, 2.0**-7])
def test_an_adaptive_step_is_of_the_gradient_over_the_bound(share: float) -> None:
    fixed = plan(OptimizerKind.MOMENTUM, ScheduleKind.CONSTANT)
    adaptive = replace(
        fixed,
        job=replace(fixed.job, is_clip_adaptive=True),
        adaptive_clip=AdaptiveClip(initial=share),
    )
    moving, plain = Trainer(model=MODEL, plan=adaptive), Trainer(model=MODEL, plan=fixed)
    for gradient in gradients(3):
        assert moving.clip().bound == share * OF.of.task.clip_norm
        moving.step(gradient * share)
        plain.step(gradient / OF.of.task.clip_norm)
    for ours, theirs in zip(moving.values(), plain.values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_models_own_values_are_never_written_to() -> None:
    before = [value.copy() for value in MODEL.initial_values]
    Trainer(model=MODEL, plan=plan()).step(gradients(1)[0])
    for value, kept in zip(MODEL.initial_values, before, strict=True):
        assert value.tobytes() == kept.tobytes()


def test_the_weights_that_are_sent_are_the_masters_rounded() -> None:
    trainer = Trainer(model=MODEL, plan=plan())
    trainer.step(gradients(1)[0])
    for sent, master in zip(
        decode_weights(trainer.weights(), MODEL.parameters), trainer.values(), strict=True
    ):
        np.testing.assert_allclose(sent.to_float(), master, atol=float(np.abs(master).max()) * 2.0**-12)


@pytest.mark.parametrize("value", [1e12, -1e12])
def test_a_step_out_of_range_is_refused_as_diverged(value: float) -> None:
    trainer = Trainer(model=MODEL, plan=plan(OptimizerKind.SGD, ScheduleKind.CONSTANT))
    with pytest.raises(InvalidModel, match="smaller learning rate") as refusal:
        trainer.step(np.full(MODEL.num_parameters, value))
    assert refusal.value.reason is ModelReason.DIVERGED


def test_split_cuts_a_flat_vector_in_the_models_order() -> None:
    weight, bias = split(np.arange(5.0), MODEL.parameters)
    assert weight.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert bias.tolist() == [4.0]


@given(rounds=st.integers(1, 500), data=st.data())
def test_a_cosine_schedule_is_torchs(rounds: int, data: st.DataObject) -> None:
    final = data.draw(st.floats(0, 1))
    schedule = Schedule(kind=ScheduleKind.COSINE, final_factor=final)
    index = data.draw(st.integers(0, rounds - 1))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=rounds, eta_min=final)
    theirs.last_epoch = index
    (expected,) = theirs._get_closed_form_lr()
    assert schedule.factor(index, rounds) == pytest.approx(expected, abs=1e-12)


def test_a_step_schedule_falls_every_so_many_rounds() -> None:
    schedule = Schedule(kind=ScheduleKind.STEP, step_rounds=2, step_factor=0.5)
    assert [schedule.factor(index, 6) for index in range(6)] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


@given(kind=st.sampled_from(ScheduleKind), index=st.integers(0, 10_000), rounds=st.integers(1, 10_000))
def test_a_factor_never_leaves_zero_to_one(kind: ScheduleKind, index: int, rounds: int) -> None:
    assert 0.0 <= Schedule(kind=kind).factor(index, rounds) <= 1.0


def test_a_plan_survives_its_canonical_bytes() -> None:
    assert decode(TrainingPlan, encode(plan())) == plan()


def test_the_denominator_is_the_expected_batch_size() -> None:
    assert plan().denominator == pytest.approx(20.0)


def test_the_last_round_is_always_evaluated() -> None:
    chosen = plan_for(OF, rounds=7, eval_every=3)
    assert [rounds for rounds in range(8) if chosen.is_evaluated(rounds)] == [0, 3, 6, 7]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": Schedule(kind=ScheduleKind.LINEAR_WARMUP, warmup_rounds=13)}, "warmup_rounds"),
        ({"task": sealed(name="another").of.task}, "another task"),
        ({"eval_every": 0}, "eval_every"),
    ],
)
def test_a_plan_that_does_not_fit_together_is_refused(changes: dict[str, object], why: str) -> None:
    names = ("task", "job", "dataset_size", "optimizer", "schedule", "eval_every")
    with pytest.raises(InvalidTask, match=why):
        build(TrainingPlan, {**{name: getattr(plan(), name) for name in names}, **changes})
