from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maskedlark.canonical import build, encode
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.federated import strategies
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.kinds import STRATEGY_KINDS, ServerOptimizerKind
from maskedlark.federated.local_training import LocalTraining, batch_schedule
from maskedlark.federated.server_optimizer import ServerOptimizer
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategies.dp_fedsgd import DpFedSgd
from maskedlark.federated.strategies.fedprox import FedProx
from maskedlark.federated.strategy import Round, ServerState, Strategy, device_stream
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.randomness import seeded
from tests.maskedlark.federated.federated_world import MODEL, dp_fedavg, examples
from tests.refusals import refused

START = MODEL.initial(seeded(1))
STACK = [examples(count, seed) for seed, count in enumerate((8, 3, 11))]


def vectors(strategy: Strategy, asked: Round) -> np.ndarray:
    streams = [device_stream(5, asked.terms.index, device) for device in range(3)]
    return strategy.device_vectors(MODEL, asked, STACK, streams)


def run(strategy: Strategy) -> ServerState:
    state = strategy.start(START)
    while (asked := strategy.next_round(state)) is not None:
        state = strategy.step(state, asked, vectors(strategy, asked).sum(axis=0))
    return state


@pytest.mark.parametrize("kind", list(strategies.STRATEGIES))
def test_a_strategy_survives_its_bytes_and_is_named_by_them(kind: str) -> None:
    bound = {"clip_norm": 1.0}
    settings = {"devices": 10, "sampling_rate": 0.5, "rounds": 3, "noise_multiplier": 0.0, "bound": bound}
    strategy = build(strategies.strategy_class(kind), settings)
    assert strategies.decode(encode(strategy)) == strategy
    assert strategy.kind == kind


@pytest.mark.parametrize(
    "encoded", [b"", b"[]", b"{}", b'{"kind":3}', b'{"kind":"sgd"}', b"[" * 60_000, b"0" * 70_000]
)
def test_bytes_that_are_no_strategy_are_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidTask):
        strategies.decode(encoded)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_rate": 0.0},
        {"devices": 0},
        {"least_weight": 1.0},
        {"bound": UpdateBound(clip_norm=1.0, is_counted=True)},
        {"quantile": AdaptiveClip()},
        {"rounds": 0},
    ],
)
def test_a_setting_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"validation error"):
        dp_fedavg(**changes)


def test_a_round_survives_its_bytes() -> None:
    strategy = dp_fedavg()
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    again = Round.decode(asked.encode(), MODEL.size)
    assert again.terms == asked.terms
    assert (again.parameters == asked.parameters).all()
    assert again.digest() == asked.digest()


def test_rounds_of_other_weights_or_terms_have_other_digests() -> None:
    strategy = dp_fedavg()
    state = strategy.start(START)
    asked = strategy.next_round(state)
    other = dp_fedavg(noise_multiplier=2.0).next_round(state)
    stepped = strategy.step(state, asked, vectors(strategy, asked).sum(axis=0)) if asked else state
    later = strategy.next_round(stepped)
    assert asked is not None
    assert other is not None
    assert later is not None
    assert len({asked.digest(), other.digest(), later.digest()}) == 3


@pytest.mark.parametrize("cut", [0, 3, 10, -1])
def test_a_round_that_is_cut_short_is_refused(cut: int) -> None:
    asked = dp_fedavg().next_round(dp_fedavg().start(START))
    assert asked is not None
    with pytest.raises((InvalidTask, InvalidModel)):
        Round.decode(asked.encode()[:cut], MODEL.size)


def test_a_round_with_an_infinite_weight_is_refused() -> None:
    weights = START.copy()
    weights[3] = np.inf
    terms = dp_fedavg().terms(0)
    with refused(ModelReason.NOT_FINITE):
        Round.decode(Round(terms=terms, parameters=weights).encode(), MODEL.size)


@pytest.mark.parametrize("kind", list(ServerOptimizerKind))
def test_a_job_that_resumes_from_its_checkpoint_gives_the_same_bits(kind: ServerOptimizerKind) -> None:
    server = ServerOptimizer(kind=kind, learning_rate=0.1)
    quantile, bound = AdaptiveClip(initial=0.5), UpdateBound(clip_norm=1.0, is_counted=True)
    strategy = dp_fedavg(server=server, quantile=quantile, bound=bound)
    state = strategy.start(START)
    while (asked := strategy.next_round(state)) is not None:
        state = strategy.step(state, asked, vectors(strategy, asked).sum(axis=0))
        state = ServerState.decode(state.encode())
    whole = run(strategy)
    assert (state.optimizer.masters == whole.optimizer.masters).all()
    assert state.clip_share == whole.clip_share != 0.5


def test_the_fixed_denominator_is_the_rate_times_all_weight() -> None:
    strategy = dp_fedavg(total_weight=8.0)
    state = strategy.start(START)
    asked = strategy.next_round(state)
    assert asked is not None
    summed = vectors(strategy, asked).sum(axis=0)
    moved = strategy.step(state, asked, summed).optimizer.masters - state.optimizer.masters
    assert moved == pytest.approx(summed * 2.0**-24 / (0.5 * 8.0), abs=1e-12)


@pytest.mark.parametrize(("least", "denominator"), [(0.5, 8 / 10 + 3 / 10 + 1), (100.0, 50.0)])
def test_the_clipped_denominator_is_the_summed_weight_but_not_too_small(
    least: float, denominator: float
) -> None:
    bound = UpdateBound(clip_norm=0.5, weight_cap=10, is_weight_summed=True)
    strategy = dp_fedavg(bound=bound, least_weight=least)
    state = strategy.start(START)
    asked = strategy.next_round(state)
    assert asked is not None
    summed = vectors(strategy, asked).sum(axis=0)
    moved = strategy.step(state, asked, summed).optimizer.masters - state.optimizer.masters
    assert moved == pytest.approx(summed[:-1] * 2.0**-24 / denominator, rel=1e-4)


def test_the_bound_follows_the_quantile_of_norms() -> None:
    quantile, bound = (
        AdaptiveClip(initial=1.0, learning_rate=1.0),
        UpdateBound(clip_norm=64.0, is_counted=True),
    )
    strategy = dp_fedavg(devices=6, rounds=30, quantile=quantile, bound=bound)
    state = run(strategy)
    asked = strategy.terms(29, state.clip_share)
    last = vectors(strategy, Round(terms=asked, parameters=state.parameters))
    assert asked.bound.clip_norm < 8
    assert len(set(last[:, -1].tolist())) == 2, "some are within the bound and some are clipped"


def test_clipping_after_each_batch_keeps_the_path_within_the_bound() -> None:
    each, last = dp_fedavg(), dp_fedavg(is_clipped_each_batch=False)
    state = each.start(START)
    asked = each.next_round(state)
    assert asked is not None
    assert (vectors(each, asked) != vectors(last, asked)).any()


def test_fedsgd_is_one_step_on_one_batch() -> None:
    settings: dict[str, Any] = {"devices": 3, "sampling_rate": 1.0, "rounds": 1, "noise_multiplier": 0.0}
    local = dp_fedavg().local
    strategy = DpFedSgd(bound=UpdateBound(clip_norm=60.0), local=local, **settings)
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    streams = [device_stream(5, 0, device) for device in range(3)]
    schedule = batch_schedule([8, 3, 11], local, streams)
    for device, part in enumerate(vectors(strategy, asked)):
        batch = schedule[device, 0]
        batch = batch[batch >= 0]
        one = STACK[device]
        gradient = MODEL.mean_gradient(
            START[None], (one.features[batch] / 255).astype(np.float32)[None], one.labels[batch][None]
        )
        assert part * 2.0**-24 == pytest.approx(-0.5 * gradient[0], abs=1e-6)


def test_a_proximal_term_holds_devices_nearer_to_the_rounds_model() -> None:
    settings: dict[str, Any] = {
        "devices": 3,
        "sampling_rate": 1.0,
        "rounds": 1,
        "noise_multiplier": 0.0,
        "bound": UpdateBound(clip_norm=60.0),
        "local": LocalTraining(epochs=20, batch_size=4, learning_rate=0.5),
    }
    free, held = (FedProx(proximal=mu, **settings) for mu in (0.0, 1.0))
    plain = DpFedAvg(**settings, is_clipped_each_batch=False)
    asked = free.next_round(free.start(START))
    assert asked is not None
    assert (vectors(free, asked) == vectors(plain, asked)).all()
    lengths = [np.linalg.norm(vectors(one, asked).astype(float), axis=1) for one in (free, held)]
    assert (lengths[1] < 0.9 * lengths[0]).all()


def test_a_cover_vector_is_zero_and_as_long_as_an_update() -> None:
    strategy = dp_fedavg(bound=UpdateBound(clip_norm=1.0, is_counted=True), quantile=AdaptiveClip())
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    cover = strategy.cover_vector(MODEL)
    assert cover.shape == vectors(strategy, asked)[0].shape
    assert not cover.any()


def test_a_step_out_of_the_finite_numbers_is_refused() -> None:
    strategy = dp_fedavg()
    state = strategy.start(START)
    asked = strategy.next_round(state)
    assert asked is not None
    beyond = replace(state, optimizer=strategy.server.start(np.full(MODEL.size, 1e39)))
    with refused(ModelReason.DIVERGED):
        strategy.step(beyond, asked, np.zeros(MODEL.size, np.int64))


def test_the_papers_lemma_fails_where_only_weighted_updates_are_bounded() -> None:
    weights, largest = np.full(1000, 1 / 1000), 1.0
    updates = np.full(1000, largest) / weights  # each |w D| is S, as the lemma asks
    before = (weights @ updates) / max(1.0, weights.sum())
    after = (weights @ updates + 1.0 * 0.0) / max(1.0, weights.sum() + 1.0)
    assert before - after == pytest.approx(500)
    assert 2 * largest / 1.0 == 2, "what the lemma claims for q W_min = 1"
    with pytest.raises(ValueError, match="fixed denominator"):
        UpdateBound(clip_norm=1.0, is_weight_aware=True, is_weight_summed=True)


def test_one_device_moves_the_clipped_mean_by_less_than_its_noise_is_made_for() -> None:
    bound = UpdateBound(clip_norm=0.5, weight_cap=4, is_weight_summed=True)
    strategy = dp_fedavg(bound=bound, least_weight=1.0)
    asked = strategy.next_round(strategy.start(START))
    assert asked is not None
    for row in vectors(strategy, asked):
        exact = sum(int(value) ** 2 for value in row)
        assert exact <= asked.terms.bound.sensitivity**2


def test_command_lines_name_every_strategy() -> None:
    assert tuple(strategies.STRATEGIES) == STRATEGY_KINDS
