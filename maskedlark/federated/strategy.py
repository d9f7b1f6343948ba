"""What every strategy has: settings, rounds, the device's step and the ad server's step.

A strategy is one module in `maskedlark.federated.strategies`: a class that extends `Strategy` and overrides
what is special. All methods are pure. The ad server keeps a `ServerState`, sends a `Round`, and steps with a
sum.
"""

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Annotated, Final, Self

import numpy as np
from pydantic import Field, model_validator

from maskedlark import canonical
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.federated.bounding import UpdateBound, bound_updates
from maskedlark.federated.local_training import (
    Differences,
    Examples,
    LocalModel,
    LocalTraining,
    Parameters,
    TrainingSteps,
    batch_schedule,
)
from maskedlark.federated.server_optimizer import Masters, OptimizerState, ServerOptimizer
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import Randomness, Stream, derive_key

_TERMS_LENGTH: Final = struct.Struct("<I")
_LARGEST: Final = float(np.finfo(np.float32).max)


@canonical.canonical
class RoundTerms:
    """The settings of one round, without the weights. Public.

    Attributes:
        index: From 0.
        sampling_rate: The probability of each device's update.
        noise_multiplier: Of the whole noise that the ad server meets, over `bound.sensitivity`; 0 for none.
        bound: What one device adds at most.
    """

    index: Annotated[int, Field(ge=0)]
    sampling_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    noise_multiplier: Annotated[float, Field(ge=0.0, le=1e6)]
    bound: UpdateBound


@frozen(eq=False)
class Round:
    """What the ad server asks of devices: the weights to train from, and the terms."""

    terms: RoundTerms
    parameters: Parameters

    def encode(self) -> bytes:
        """Encode what devices download: the length of the terms, the terms, float32 little-endian weights."""
        terms = canonical.encode(self.terms)
        return _TERMS_LENGTH.pack(len(terms)) + terms + self.parameters.astype("<f4").tobytes()

    @classmethod
    def decode(cls, encoded: bytes, parameters: int) -> Self:
        """Parse a round. Called by a device.

        Args:
            encoded: From the ad server.
            parameters: How many the model has.

        Raises:
            InvalidTask: malformed terms.
            InvalidModel(WRONG_SHAPE): another number of weights.
            InvalidModel(NOT_FINITE): a weight is NaN or infinite.
        """
        start = _TERMS_LENGTH.size
        if len(encoded) < start:
            raise InvalidTask("a round begins with the length of its terms, 4 bytes")
        end = start + int(_TERMS_LENGTH.unpack(encoded[:start])[0])
        terms = canonical.decode(RoundTerms, encoded[start:end])
        if len(encoded) - end != 4 * parameters:
            raise InvalidModel(
                ModelReason.WRONG_SHAPE,
                f"the round has {len(encoded) - end} bytes of weights, not {4 * parameters}",
            )
        weights = np.frombuffer(encoded[end:], "<f4").astype(np.float32)
        if not np.isfinite(weights).all():
            raise InvalidModel(ModelReason.NOT_FINITE, "a weight of the round is not finite")
        return cls(terms=terms, parameters=weights)

    def digest(self) -> bytes:
        """Return 32 bytes that identify the round's content."""
        return canonical.digest("federated round", self.encode())


@frozen(eq=False)
class ServerState:
    """The state of a federated job between two rounds.

    Attributes:
        rounds_done: How many steps were taken: the index of the next round.
        optimizer: The model, and what the server optimizer remembers.
        clip_share: Of a bound that follows a quantile: the bound over the largest; 1 otherwise.
    """

    rounds_done: int
    optimizer: OptimizerState
    clip_share: float = 1.0

    @property
    def parameters(self) -> Parameters:
        """The model as devices get it."""
        return self.optimizer.masters.astype(np.float32)

    def encode(self) -> bytes:
        """Encode the stored form, an npz file."""
        stored = BytesIO()
        # Not compressed: the digits of noisy float64 hardly can be.
        np.savez(
            stored,
            rounds_done=np.int64(self.rounds_done),
            clip_share=np.float64(self.clip_share),
            masters=self.optimizer.masters,
            first=self.optimizer.first,
            second=self.optimizer.second,
        )
        return stored.getvalue()

    @classmethod
    def decode(cls, stored: bytes) -> Self:
        """Read what `encode` wrote."""
        # No pickles, because a checkpoint must not run code.
        with np.load(BytesIO(stored), allow_pickle=False) as arrays:
            optimizer = OptimizerState(
                masters=arrays["masters"], first=arrays["first"], second=arrays["second"]
            )
            return cls(
                rounds_done=int(arrays["rounds_done"]),
                optimizer=optimizer,
                clip_share=float(arrays["clip_share"]),
            )


@canonical.canonical
class Strategy:
    """The public settings of a federated job, and what follows from them.

    Attributes:
        devices: K, all devices of the task, drawn or not: a public constant.
        sampling_rate: q, the probability with which a device is drawn in a round.
        cover_rate: c, the probability with which a device that is not drawn sends cover.
        rounds: T, how many there are at most.
        noise_multiplier: z: the noise on the sum over `bound.sensitivity`; 0 for none.
        bound: What a device adds at most; with `quantile`, at the largest.
        total_weight: W, the sum of all devices' weights: a public constant; None for `devices`.
        least_weight: W_min, for the clipped denominator; None for the fixed one.
        quantile: How the bound follows a quantile of the norms; None for a fixed bound.
        local: How devices train.
        server: The server optimizer.
    """

    kind: str
    devices: Annotated[int, Field(ge=1, le=1 << 40)]
    sampling_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    rounds: Annotated[int, Field(ge=1, le=1 << 24)]
    noise_multiplier: Annotated[float, Field(ge=0.0, le=1e6)]
    bound: UpdateBound
    cover_rate: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    total_weight: Annotated[float, Field(gt=0.0)] | None = None
    least_weight: Annotated[float, Field(gt=0.0)] | None = None
    quantile: AdaptiveClip | None = None
    local: LocalTraining = LocalTraining()
    server: ServerOptimizer = ServerOptimizer()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.least_weight is not None) != self.bound.is_weight_summed:
            raise ValueError("least_weight goes with bound.is_weight_summed, and only with it")
        if (self.quantile is not None) != self.bound.is_counted:
            raise ValueError("quantile goes with bound.is_counted, and only with it")
        return self

    @property
    def helper_mechanism(self) -> Mechanism:
        """The noise that helpers add to a sum."""
        return Mechanism.GAUSSIAN if self.noise_multiplier else Mechanism.NONE

    def start(self, parameters: Parameters) -> ServerState:
        """Return the state before the first round. Ad server."""
        share = 1.0 if self.quantile is None else self.quantile.initial
        # Wider than what devices get, so that steps below the grid of float32 add up.
        optimizer = self.server.start(parameters.astype(np.float64))
        return ServerState(rounds_done=0, optimizer=optimizer, clip_share=share)

    def last_round(self) -> int:
        """Return the number of planned rounds."""
        return self.rounds

    def next_round(self, state: ServerState) -> Round | None:
        """Return the next round; None after the last one. Ad server."""
        if state.rounds_done >= self.last_round():
            return None
        return Round(terms=self.terms(state.rounds_done, state.clip_share), parameters=state.parameters)

    def terms(self, index: int, clip_share: float = 1.0) -> RoundTerms:
        """Return the terms of a round."""
        bound = self.bound
        if self.quantile is not None:
            bound = bound.at(bound.clip_norm * adaptive_clip.on_grid(clip_share))
        return RoundTerms(
            index=index,
            sampling_rate=self.sampling_rate,
            noise_multiplier=self.noise_multiplier,
            bound=bound,
        )

    def device_vectors(
        self, model: LocalModel, asked: Round, stack: Sequence[Examples], randomness: Sequence[Randomness]
    ) -> SignedVector:
        """Train and bound: one row a device. A device calls it with its own examples alone.

        Raises:
            ValueError: a difference is not finite.
        """
        counts = [len(examples) for examples in stack]
        differences = self.local_differences(model, asked, stack, randomness)
        return bound_updates(differences, counts, asked.terms.bound, model.layer_sizes)

    def local_differences(
        self, model: LocalModel, asked: Round, stack: Sequence[Examples], randomness: Sequence[Randomness]
    ) -> Differences:
        """Return what training on each device changes, before it is bounded: plain SGD here."""
        return model.train(asked.parameters, stack, self.steps(stack, randomness))

    def steps(self, stack: Sequence[Examples], randomness: Sequence[Randomness]) -> TrainingSteps:
        """Return the passes over each device's examples, in a random order, as `local` says."""
        schedule = batch_schedule([len(examples) for examples in stack], self.local, randomness)
        return TrainingSteps(schedule=schedule, learning_rate=self.local.learning_rate)

    def cover_vector(self, model: LocalModel) -> SignedVector:
        """Return what a device shares that is not drawn: zeros in all coordinates."""
        return np.zeros(sum(model.layer_sizes) + self.bound.extra_coordinates, np.int64)

    def step(self, state: ServerState, asked: Round, summed: SignedVector) -> ServerState:
        """Return the state after a round. Ad server.

        Args:
            state: From which `asked` was made.
            asked: The round.
            summed: The noised total, signed, parameters and extra coordinates.

        Raises:
            InvalidModel(DIVERGED): the step left the finite float32 numbers.
        """
        bound = asked.terms.bound
        parameters = len(state.optimizer.masters)
        values = np.ldexp(summed.astype(np.float64), -bound.frac_bits)
        mean: Masters = values[:parameters] / self._denominator(asked, summed)
        optimizer = self.server.step(state.optimizer, mean)
        if not (np.abs(optimizer.masters) <= _LARGEST).all():  # also false for NaN
            raise InvalidModel(ModelReason.DIVERGED, "training diverged: use a smaller learning rate")
        # The count's coordinate is the last of all, after the weight's.
        share = state.clip_share
        if self.quantile is not None:
            excess = float(summed[-1]) / (bound.extra_units * asked.terms.sampling_rate * self.devices)
            share = self.quantile.next(share, excess)
        return ServerState(rounds_done=state.rounds_done + 1, optimizer=optimizer, clip_share=share)

    def charges(self, rounds: int) -> list[Charge]:
        """Return the cost of the first rounds where one curator adds all the noise.

        An adversary that sees which devices upload knows more: see `maskedlark.releases.update.seen_rate`.
        """
        if rounds < 1:
            return []
        return [
            Charge(
                mechanism=self.helper_mechanism,
                noise_multiplier=self.noise_multiplier,
                sampling_rate=self.sampling_rate,
                rounds=rounds,
            )
        ]

    def _denominator(self, asked: Round, summed: SignedVector) -> float:
        """Return either q W, or max(q W_min, the noised sum of weights)."""
        rate = asked.terms.sampling_rate
        # A public constant: no sum has to be noised for it.
        if self.least_weight is None:
            return rate * (self.devices if self.total_weight is None else self.total_weight)
        place = -2 if asked.terms.bound.is_counted else -1
        # With its noise the sum of weights may lie near 0 or below.
        weight = float(summed[place]) / asked.terms.bound.extra_units
        return max(rate * self.least_weight, weight)


def device_stream(seed: int, round_index: int, device: int) -> Stream:
    """Return a device's random stream in one round of a seeded run: for simulations and tests only."""
    context = struct.pack("<qqq", seed, round_index, device)
    return Stream(derive_key(b"seeded device", b"federated", context))
