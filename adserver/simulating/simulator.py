"""Rounds of a strategy with all devices in this process: what a network does, without sealing.

    simulated = Simulated(strategy=strategy, model=model, population=population, features=features,
    labels=labels) for point in simulate(simulated, parameters, seed=1, evaluate=evaluate):
        print(point.round, point.scores)

Each device tosses its coin and draws its batches from `device_stream(seed, round, device)`, so a network of
devices with the same seed, without noise, trains the same model bit for bit. Drawn devices train in stacks,
side by side.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples, LocalModel, Parameters
from maskedlark.federated.participation import Part, toss
from maskedlark.federated.populations import Population
from maskedlark.federated.strategy import Round, ServerState, Strategy, device_stream
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.numbers.fixed_point import check_no_overflow
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_scale, noise_vector, tail_bound
from maskedlark.randomness import Randomness, seeded

STACK: Final = 32
"""The most devices that train side by side."""
# Weights of dense models that train side by side: what a core's cache holds. More take twice as long.
_CACHED_BYTES: Final = 1 << 20

Evaluate = Callable[[Parameters], Mapping[str, float]]
"""Scores of a model, by name."""


@frozen(eq=False)
class Simulated:
    """A strategy and the devices that it runs on.

    Attributes:
        strategy: The strategy.
        model: What devices train.
        population: Which examples each device holds; as many devices as the strategy says.
        features: Of all examples.
        labels: Of all examples.
        noise: Where helpers' noise comes from: a random stream, or None for the seed's.
    """

    strategy: Strategy
    model: LocalModel
    population: Population
    features: NDArray[np.integer]
    labels: NDArray[np.integer]
    noise: Randomness | None = None

    def examples(self, device: int) -> Examples:
        """Return one device's examples."""
        return self.population.examples(self.features, self.labels, device)


@frozen(eq=False)
class SimulatedRound:
    """What came of one round.

    Attributes:
        round: How many rounds are done; 0 before the first.
        devices: How many devices sent an update.
        covers: How many sent zeros.
        clip_norm: The bound on an update in this round.
        scores: Of the model after the round; empty where it was not evaluated.
        seconds: Since the simulation began.
        state: The ad server's state after the round.
        diagnostics: Of the updates: not private, so only in a simulation.
    """

    round: int
    devices: int
    covers: int
    clip_norm: float
    scores: Mapping[str, float]
    seconds: float
    state: ServerState = field(repr=False)
    diagnostics: "_Diagnostics | None" = None


@frozen
class _Diagnostics:
    """How much clients agree (Geyer et al. 2017, section 3). They are not private: no network run gives them.

    Attributes:
        between_clients: V_c, the mean over parameters of the updates' variance over clients.
        update_scale: U_s, the mean over parameters of the squared mean update.
    """

    between_clients: float
    update_scale: float


def simulate(
    simulated: Simulated,
    parameters: Parameters,
    *,
    seed: int,
    evaluate: Evaluate,
    eval_every: int = 1,
    is_diagnosed: bool = False,
) -> Iterator[SimulatedRound]:
    """Run all rounds, one result a round, the start first.

    Args:
        simulated: What to run.
        parameters: The model's initial weights.
        seed: Of every device's coins and batches, and of the noise unless `simulated.noise` is given.
        evaluate: Scores a model; it sees the weights as devices get them.
        eval_every: Evaluate after every so many rounds, and after the last.
        is_diagnosed: Whether to compute `SimulatedRound.diagnostics`.

    Raises:
        InvalidModel(DIVERGED): a step left the finite numbers.
        JobRefused(OVERFLOW): a sum could wrap in the field.
    """
    began = time.monotonic()
    strategy = simulated.strategy
    noise = seeded(seed, "simulated noise") if simulated.noise is None else simulated.noise
    state = strategy.start(parameters)
    yield SimulatedRound(
        round=0, devices=0, covers=0, clip_norm=strategy.terms(0, state.clip_share).bound.clip_norm,
        scores=evaluate(state.parameters), seconds=0.0, state=state,
    )  # fmt: skip
    asked = strategy.next_round(state)
    while asked is not None:
        collected = _collect(simulated, asked, seed, is_diagnosed=is_diagnosed)
        summed = collected.total + _round_noise(strategy, asked, len(collected.total), noise)
        state = strategy.step(state, asked, summed)
        following = strategy.next_round(state)
        is_evaluated = following is None or state.rounds_done % eval_every == 0
        yield SimulatedRound(
            round=state.rounds_done,
            devices=collected.devices,
            covers=collected.covers,
            clip_norm=asked.terms.bound.clip_norm,
            scores=evaluate(state.parameters) if is_evaluated else {},
            seconds=time.monotonic() - began,
            state=state,
            diagnostics=collected.diagnostics,
        )
        asked = following


@frozen(eq=False)
class _Collected:
    """A round's sum before noise, and the devices that took part."""

    total: SignedVector
    devices: int
    covers: int
    diagnostics: _Diagnostics | None


def _collect(simulated: Simulated, asked: Round, seed: int, *, is_diagnosed: bool = False) -> _Collected:
    """Add all devices' answers to one round."""
    strategy, model = simulated.strategy, simulated.model
    drawn: list[int] = []
    covers = 0
    for device in range(len(simulated.population)):
        stream = device_stream(seed, asked.terms.index, device)
        part = toss(asked.terms.sampling_rate, strategy.cover_rate, stream)
        if part is Part.UPDATE:
            drawn.append(device)
        covers += part is Part.COVER
    total = strategy.cover_vector(model)
    squares = np.zeros(len(total))
    stacked = _stack_of(model)
    # Coins first, then stacks of those that were drawn: a stack with gaps would train for nothing.
    for first in range(0, len(drawn), stacked):
        members = drawn[first : first + stacked]
        streams = [device_stream(seed, asked.terms.index, device) for device in members]
        for stream in streams:
            stream(16)  # the coin's bytes
        stack = [simulated.examples(device) for device in members]
        vectors = strategy.device_vectors(model, asked, stack, streams)
        total += vectors.sum(axis=0)
        if is_diagnosed:
            squares += np.square(np.ldexp(vectors.astype(np.float64), -asked.terms.bound.frac_bits)).sum(
                axis=0
            )
    diagnostics = None
    if is_diagnosed and drawn:
        means = np.ldexp(total.astype(np.float64), -asked.terms.bound.frac_bits) / len(drawn)
        variances = squares / len(drawn) - means**2
        diagnostics = _Diagnostics(
            between_clients=float(variances.mean()), update_scale=float(np.square(means).mean())
        )
    return _Collected(total=total, devices=len(drawn), covers=covers, diagnostics=diagnostics)


def _stack_of(model: LocalModel) -> int:
    """Return how many devices train together in one batch; it changes no bit of the result."""
    if not isinstance(model, DenseModel):
        return STACK
    return max(1, min(STACK, _CACHED_BYTES // (4 * model.size)))


def _round_noise(strategy: Strategy, asked: Round, count: int, randomness: Randomness) -> SignedVector:
    """Draw one curator's noise on a round's sum: an exact discrete Gaussian.

    Raises:
        JobRefused(OVERFLOW): a sum could wrap in the field.
    """
    terms = asked.terms
    mechanism = strategy.helper_mechanism if terms.noise_multiplier else Mechanism.NONE
    scale = noise_scale(mechanism, terms.noise_multiplier, terms.bound.sensitivity)
    bound = tail_bound(mechanism, scale, count)
    check_no_overflow(records=strategy.devices, sensitivity=terms.bound.sensitivity, noise_bound=bound)
    return noise_vector(mechanism, scale, count, randomness)
