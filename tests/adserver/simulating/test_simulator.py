from typing import Any

import numpy as np
import pytest

from adserver.simulating.simulator import Simulated, _collect, _round_noise, _stack_of, simulate
from maskedlark.errors import JobReason, JobRefused
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples, LocalTraining
from maskedlark.federated.participation import Part, toss
from maskedlark.federated.populations import Population
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategies.line import Line
from maskedlark.federated.strategy import Strategy, device_stream
from maskedlark.numbers.field import add as add_in_field
from maskedlark.numbers.field import from_signed, share, to_signed
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.randomness import seeded

NUMBERS = np.random.default_rng(1)
FEATURES = NUMBERS.integers(0, 256, (400, 8)).astype(np.uint8)
LABELS = (FEATURES[:, 0] > 127).astype(np.int64) + (FEATURES[:, 1] > 127)
MODEL = DenseModel(widths=(8, 3))
START = MODEL.initial(seeded(1))


def settings(**changes: Any) -> dict[str, Any]:
    common: dict[str, Any] = {
        "devices": 40,
        "sampling_rate": 0.4,
        "rounds": 4,
        "noise_multiplier": 0.0,
        "bound": UpdateBound(clip_norm=1.0, is_counted=True),
        "quantile": AdaptiveClip(initial=0.5),
        "cover_rate": 0.5,
        "local": LocalTraining(epochs=2, batch_size=4, learning_rate=0.5),
    }
    return common | changes


def simulated(strategy: Strategy) -> Simulated:
    population = Population.in_equal_parts(400, each=10, randomness=seeded(1))
    return Simulated(strategy=strategy, model=MODEL, population=population, features=FEATURES, labels=LABELS)


def accuracy(parameters: Any) -> dict[str, float]:
    return {"accuracy": MODEL.accuracy(parameters, Examples(features=FEATURES, labels=LABELS))}


def test_devices_alone_and_shares_in_the_field_give_the_simulations_bits() -> None:
    strategy = DpFedAvg(**settings())
    world = simulated(strategy)
    *_, last = simulate(world, START, seed=7, evaluate=accuracy)
    state = strategy.start(START)
    shares = seeded(99)
    while (asked := strategy.next_round(state)) is not None:
        held = [from_signed(strategy.cover_vector(MODEL)), from_signed(strategy.cover_vector(MODEL))]
        for device in reversed(range(40)):
            stream = device_stream(7, asked.terms.index, device)
            part = toss(asked.terms.sampling_rate, strategy.cover_rate, stream)
            if part is Part.SILENT:
                continue
            vector = strategy.cover_vector(MODEL)
            if part is Part.UPDATE:
                vector = strategy.device_vectors(MODEL, asked, [world.examples(device)], [stream])[0]
            pieces = share(from_signed(vector), shares)
            held = [add_in_field(one, piece) for one, piece in zip(held, pieces, strict=True)]
        state = strategy.step(state, asked, to_signed(add_in_field(*held)))
    assert (state.optimizer.masters == last.state.optimizer.masters).all()
    assert state.clip_share == last.state.clip_share


def test_a_simulation_learns_and_repeats_itself() -> None:
    runs = [
        list(
            simulate(
                simulated(DpFedAvg(**settings(rounds=20))), START, seed=3, evaluate=accuracy, eval_every=5
            )
        )
        for _ in range(2)
    ]
    scores = [[point.scores.get("accuracy") for point in run if point.scores] for run in runs]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 5
    assert (scores[0][-1] or 0) > 0.7 > (scores[0][0] or 0)


def test_how_many_devices_train_side_by_side_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = simulated(DpFedAvg(**settings()))
    *_, one = simulate(world, START, seed=7, evaluate=accuracy)
    monkeypatch.setattr("adserver.simulating.simulator._stack_of", lambda _: 3)
    *_, other = simulate(world, START, seed=7, evaluate=accuracy)
    assert one.state.encode() == other.state.encode()


def test_large_models_train_fewer_at_a_time_so_that_their_weights_stay_in_the_cache() -> None:
    assert [_stack_of(DenseModel(widths=widths)) for widths in ((784, 10), (784, 64, 10), (784, 2000))] == [
        32,
        5,
        1,
    ]


def test_another_seed_draws_other_devices() -> None:
    strategy = DpFedAvg(**settings())
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    totals = [_collect(simulated(strategy), asked, seed).total for seed in (1, 2)]
    assert (totals[0] != totals[1]).any()


def test_covers_and_updates_are_drawn_at_their_rates() -> None:
    points = list(
        simulate(simulated(DpFedAvg(**settings(rounds=100))), START, seed=3, evaluate=lambda _: {})
    )[1:]
    assert np.mean([point.devices for point in points]) == pytest.approx(16, abs=1.5)
    assert np.mean([point.covers for point in points]) == pytest.approx(12, abs=1.5)


def test_noise_is_the_multiplier_times_the_sensitivity() -> None:
    strategy = DpFedAvg(**settings(noise_multiplier=1.5))
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    noise = _round_noise(strategy, asked, 40_000, seeded(5))
    assert noise.std() == pytest.approx(1.5 * asked.terms.bound.sensitivity, rel=0.02)


def test_a_local_strategys_sum_gets_no_further_noise() -> None:
    line = Line(devices=40, sampling_rate=1.0, rounds=1, bound=UpdateBound(clip_norm=1.0, frac_bits=20))
    asked = line.next_round(line.start(START))
    assert asked is not None
    assert not _round_noise(line, asked, 100, seeded(5)).any()


def test_a_sum_that_could_wrap_is_refused() -> None:
    bound = UpdateBound(clip_norm=1.0, frac_bits=30)
    strategy = DpFedAvg(**settings(devices=1 << 40, bound=bound, quantile=None))
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    with pytest.raises(JobRefused) as refused:
        _round_noise(strategy, asked, 10, seeded(5))
    assert refused.value.reason is JobReason.OVERFLOW


def test_diagnostics_are_the_variance_over_clients_and_the_squared_mean() -> None:
    strategy = DpFedAvg(**settings(bound=UpdateBound(clip_norm=1.0), quantile=None))
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    world = simulated(strategy)
    collected = _collect(world, asked, 7, is_diagnosed=True)
    rows = []
    for device in range(40):
        stream = device_stream(7, 0, device)
        if toss(asked.terms.sampling_rate, strategy.cover_rate, stream) is Part.UPDATE:
            rows.append(
                strategy.device_vectors(MODEL, asked, [world.examples(device)], [stream])[0] * 2.0**-24
            )
    assert collected.diagnostics is not None
    assert collected.diagnostics.between_clients == pytest.approx(np.var(rows, axis=0).mean())
    assert collected.diagnostics.update_scale == pytest.approx(np.square(np.mean(rows, axis=0)).mean())
