"""What a job could be, before anything is spent.

Of noise, batch size and rounds, the ones that are left open, found to fit both budgets; all three of them, if
nothing is fixed (see `Planner.plan`).

`adserver job plan` shows what this finds, and `adserver job submit` takes it: one sum for both. A job fits if
it costs no more than was asked for it, alone, and if its dataset stays within both budgets with all that is
held on it already.

The quality of what fits is predicted as noise over signal: how long both helpers' noise on a round's mean
gradient is expected to be, over how long that gradient is assumed to be. A mean of clipped gradients is at
most the clip norm long, so unless something better is known the ratio with the clip norm is the *least* that
the noise can be.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from adserver.budgets.headroom import Cost, JobLimits, Limit, default_batch_size
from adserver.budgets.weights_error import weights_error
from adserver.records.defaults import MAX_EPOCHS, MAX_ROUNDS
from adserver.records.round_figures import noise_norm
from adserver.records.submissions import PlanConstraints
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.releases.release import units_of_each_helper
from maskedlark.releases.sampling import StepNoise

OnProgress: TypeAlias = Callable[[int, int], None]

_WITHIN: Final = 1.1
# Jobs whose worth differs by less are equal
_EQUAL: Final = 1.03
# Noise is found to 1 %, and an epsilon with it
_SEARCHED: Final = 1.02
_BATCHES: Final = 6
_EPOCHS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
_ALTERNATIVES: Final = 5
# Of a gradient: no ratio of noise to it overflows
_LEAST_NORM: Final = 1e-30
_Number = TypeVar("_Number", int, float)


def _says_nothing(_: int, __: int) -> None:
    """Ignore the progress of a plan that is not watched."""


@frozen
class Option:
    """A job that fits, and what it is predicted to be worth.

    Attributes:
        rounds: Optimizer steps.
        batch_size: Expected reports in a round.
        noise_multiplier: As the job names it.
        cost: What it costs, alone and together with what is held.
        noise_norm: The root mean square L2 norm of both helpers' noise on a round's mean gradient, in the
            gradient's units.
        noise_to_signal: That over the assumed norm of the mean gradient.
        limit: What keeps it from costing more.
        carried: Of correlated noise, whose `noise_norm` is that of independent noise with the same error in
            the weights; else None.
        weight_noise: The root mean square of both helpers' noise in each weight after the last round; None
            without a learning rate.
        core_seconds: An upper estimate of both helpers' processor time; None without a model.
    """

    rounds: int
    batch_size: float
    noise_multiplier: float
    cost: Cost
    noise_norm: float
    noise_to_signal: float
    limit: Limit
    carried: int | None = None
    weight_noise: float | None = None
    core_seconds: float | None = None

    @property
    def steps_worth(self) -> float:
        """The number of noise-free steps that the job is predicted to be worth.

        A step along a gradient with noise r times as long gains, at its best length, 1 / (1 + r^2) of what
        one without noise gains.
        """
        return self.rounds / (1 + self.noise_to_signal**2)


@frozen
class Plan:
    """What comes of a wish.

    Attributes:
        recommended: The job to submit.
        alternatives: Jobs near it that fit too, it among them, in order of batch size and rounds.
        gradient_norm: The assumption on the mean gradient's norm.
        is_norm_known: Whether somebody expects that norm; if not, it is the longest possible, noise over
            signal is the least possible, and what a job is worth is not known.
        learning_rate: See `Planner`.
    """

    recommended: Option
    alternatives: tuple[Option, ...]
    gradient_norm: float
    is_norm_known: bool = True
    learning_rate: float | None = None

    def recommending(self, option: Option) -> "Plan":
        """Return the same plan with another job recommended."""
        return replace(self, recommended=option, alternatives=_rank([*self.alternatives, option]))


@frozen
class Planner:
    """Finds and ranks what fits.

    Attributes:
        room: What limits the job.
        num_parameters: Of the model.
        gradient_norm: How long a round's mean gradient is assumed to be; None for the clip norm, the longest
            that it can be.
        learning_rate: Of SGD, with the momentum of the room or without; None if it is not known. It
            multiplies the gradient over the bound where the bound is adaptive, by default.
        round_seconds: One helper's processor time for a round of so many expected reports, or None.
    """

    room: JobLimits
    num_parameters: int
    gradient_norm: float | None = None
    learning_rate: float | None = None
    round_seconds: Callable[[float], float] | None = None

    @property
    def assumed_norm(self) -> float:
        """The assumption, in the gradient's units."""
        return self.room.clip.bound if self.gradient_norm is None else self.gradient_norm

    def plan(self, wish: PlanConstraints, on_progress: OnProgress = _says_nothing) -> Plan:
        """Find what a wish leaves open, and alternatives.

        One of the three may be open, or noise and batch size together: then the batch is recommended that a
        job takes by itself, `default_batch_size`. If all are open, the job is recommended that is worth most
        steps without noise; of jobs worth the same, as of `choose`, the one that costs least against the ad
        server with one helper.

        Args:
            wish: What is fixed.
            on_progress: Called with how many of how many jobs have been looked at, where all are open.

        Raises:
            InvalidTask: too much is left open, or a number is out of range.
            JobRefused(BUDGET_EXHAUSTED, MALFORMED, NOISE_OUT_OF_RANGE)
        """
        if self.gradient_norm is not None and not _LEAST_NORM <= self.gradient_norm < math.inf:
            raise InvalidTask(
                f"gradient_norm must be positive, finite and at least {_LEAST_NORM:g}, "
                f"not {self.gradient_norm}"
            )
        if wish.rounds is not None and not 1 <= wish.rounds <= MAX_ROUNDS:
            raise InvalidTask(f"rounds must be 1 to {MAX_ROUNDS}, not {wish.rounds}")
        max_epochs = MAX_EPOCHS if wish.max_epochs is None else wish.max_epochs
        if max_epochs < 1:
            raise InvalidTask(f"max_epochs must be at least 1, not {max_epochs}")
        rounds, batch_size, noise = wish.rounds, wish.batch_size, wish.noise_multiplier
        if rounds is None and batch_size is None and noise is None:
            return self._open_all(max_epochs, on_progress)
        if rounds is None:
            if noise is None:
                raise InvalidTask(
                    "rounds and noise multiplier are both missing: give one of them to find the other"
                )
            return self._open_rounds(noise, self.room.dataset_size if batch_size is None else batch_size)
        if noise is not None:
            return self._given_noise(rounds, noise, batch_size)
        return self._open_noise(rounds, batch_size)

    def option(self, *, rounds: int, batch_size: float, noise_multiplier: float) -> Option:
        """Price one job and predict its accuracy; raise if it does not fit.

        Raises:
            JobRefused(BUDGET_EXHAUSTED, MALFORMED, NOISE_OUT_OF_RANGE)
        """
        room = self.room
        room.check(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier)
        cost = room.cost(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier)
        length = self._noise_norm(rounds, batch_size, noise_multiplier)
        carried = room.samples(batch_size, rounds).carried
        seconds = None if self.round_seconds is None else 2 * rounds * self.round_seconds(batch_size)
        return Option(
            rounds=rounds,
            batch_size=batch_size,
            noise_multiplier=noise_multiplier,
            cost=cost,
            noise_norm=length,
            noise_to_signal=length / self.assumed_norm,
            limit=room.nearest(cost),
            carried=carried,
            weight_noise=self._weight_noise(rounds, length, batch_size, carried),
            core_seconds=seconds,
        )

    def with_noise(self, noise: StepNoise, rounds: int, batch_size: float) -> Option:
        """Return such rounds and batches with the least independent, or correlated, noise that fits.

        Raises:
            JobRefused(BUDGET_EXHAUSTED, MALFORMED, NOISE_OUT_OF_RANGE)
        """
        return replace(self, room=replace(self.room, noise=noise))._with_noise(rounds, batch_size)

    def _open_noise(self, rounds: int, batch_size: float | None) -> Plan:
        """Find the noise for the given batch size, or for the best one."""
        if batch_size is None:
            options, refusal = _fitting(lambda batch: self._with_noise(rounds, batch), self._batches())
            if refusal is not None and not options:
                raise refusal
            usual = default_batch_size(self.room.dataset_size)
            # Correlated noise has no job of all reports in each round
            chosen = next((one for one in options if one.batch_size == usual), None) or choose(options)
        else:
            chosen = self._with_noise(rounds, batch_size)
            options, _ = _fitting(lambda batch: self._with_noise(rounds, batch), self._batches())
        others, _ = _fitting(
            lambda other: self._with_noise(other, chosen.batch_size),
            (max(1, rounds // 2), min(MAX_ROUNDS, 2 * rounds)),
        )
        return self._plan(chosen, [*options, *others])

    def _open_all(self, max_epochs: int, on_progress: OnProgress) -> Plan:
        """Find everything: the epochs and steps per epoch that are worth most noise-free steps.

        The budget against collusion is a closed form, and most settings are looked at by it alone: how much
        each could be worth at most. From the best downwards they are then found with both budgets, until
        none that is left could be worth more.
        """
        settings = [
            (epochs * steps, self.room.dataset_size / steps)
            for epochs in sorted({min(epochs, max_epochs) for epochs in _EPOCHS})
            for steps in self._steps()
            if epochs * steps <= MAX_ROUNDS
        ]
        promised, refusal = [], None
        for number, (rounds, batch_size) in enumerate(settings):
            on_progress(number, len(settings))
            try:
                least = self.room.least_noise_in_collusion(rounds=rounds, batch_size=batch_size)
            except JobRefused as error:
                refusal = error
                continue
            ratio = self._noise_norm(rounds, batch_size, least) / self.assumed_norm
            promised.append((rounds / (1 + ratio**2), rounds, batch_size))
        found: list[Option] = []
        for number, (most, rounds, batch_size) in enumerate(sorted(promised, reverse=True)):
            best = max((option.steps_worth for option in found), default=0.0)
            # What is left cannot be as good: only enough near the best is looked at for people to choose from
            if most * _EQUAL < best and (len(found) >= _ALTERNATIVES or most < best / _WITHIN):
                break
            on_progress(number, len(promised))
            some, refused = _fitting(partial(self._with_noise, rounds), [batch_size])
            found, refusal = [*found, *some], refused or refusal
        if not found:
            raise refusal or JobRefused(
                JobReason.BUDGET_EXHAUSTED, "no job fits this dataset's budgets: seal another dataset"
            )
        return self._plan(choose(found), found)

    def _steps(self) -> list[int]:
        """Return candidate steps per epoch: 1, then factors of 1.4 while a batch holds min_batch_size."""
        most, steps = self.room.dataset_size // self.room.task.min_batch_size, [1]
        while (following := max(steps[-1] + 1, round(steps[-1] * math.sqrt(2)))) <= most:
            steps.append(following)
        return steps

    def _open_rounds(self, noise: float, batch_size: float) -> Plan:
        """Find the rounds for the given noise, and for somewhat less and more noise."""

        def most(multiplier: float) -> Option:
            rounds = self.room.rounds_for(noise_multiplier=multiplier, batch_size=batch_size)
            return self.option(rounds=rounds, batch_size=batch_size, noise_multiplier=multiplier)

        return self._plan(most(noise), _fitting(most, (noise / 2, noise * 2))[0])

    def _given_noise(self, rounds: int, noise: float, batch_size: float | None) -> Plan:
        """Find the batch size, or check a job that is fully specified.

        With this noise, and with some less and more of it.
        """

        def largest(multiplier: float) -> Option:
            batch = (
                self.room.batch_size_for(noise_multiplier=multiplier, rounds=rounds)
                if batch_size is None
                else batch_size
            )
            return self.option(rounds=rounds, batch_size=batch, noise_multiplier=multiplier)

        return self._plan(largest(noise), _fitting(largest, (noise / 2, noise * 2))[0])

    def _noise_norm(self, rounds: int, batch_size: float, noise_multiplier: float) -> float:
        task = self.room.task
        units = units_of_each_helper(task, noise_multiplier, self.room.clip.sensitivity)
        each = noise_norm(task, units, num_parameters=self.num_parameters, denominator=batch_size)
        return each * self.room.error_ratio(rounds=rounds, batch_size=batch_size)

    def _weight_noise(
        self, rounds: int, noise_norm: float, batch_size: float, carried: int | None
    ) -> float | None:
        """Return the error of each weight, of steps that are in units of the bound where it is adaptive."""
        room = self.room
        if self.learning_rate is None:
            return None
        is_adaptive = room.clip_norm is None and carried is None
        # `noise_norm` is of independent noise with the same error; `weights_error` takes the real noise's own
        of_step = noise_norm / room.error_ratio(rounds=rounds, batch_size=batch_size)
        of_step /= math.sqrt(self.num_parameters) * (room.clip.bound if is_adaptive else 1.0)
        error = weights_error(carried or 0, rounds=rounds, momentum=room.momentum, schedule=room.schedule)
        return self.learning_rate * of_step * error.at_end

    def _with_noise(self, rounds: int, batch_size: float) -> Option:
        noise = self.room.noise_for(rounds=rounds, batch_size=batch_size)
        return self.option(rounds=rounds, batch_size=batch_size, noise_multiplier=noise)

    def _batches(self) -> list[float]:
        """Return candidate batch sizes: the whole dataset and its halves, down to min_batch_size."""
        smallest, sizes = self.room.task.min_batch_size, [float(self.room.dataset_size)]
        while len(sizes) < _BATCHES and sizes[-1] // 2 >= smallest:
            sizes.append(sizes[-1] // 2)
        return sizes

    def _plan(self, chosen: Option, others: Iterable[Option]) -> Plan:
        return Plan(
            recommended=chosen,
            alternatives=_rank([chosen, *others]),
            gradient_norm=self.assumed_norm,
            is_norm_known=self.gradient_norm is not None,
            learning_rate=self.learning_rate,
        )


def choose(options: Sequence[Option]) -> Option:
    """Return the job of most worth; of those worth the same to 3 %, the one that costs least in collusion.

    Epsilons against the ad server with one helper that differ by less than 2 % are equal: of these the job of
    most worth is returned.

    Args:
        options: At least one.
    """
    most = max(one.steps_worth for one in options)
    equal = [one for one in options if one.steps_worth * _EQUAL >= most]
    least = min(one.cost.together.colluding for one in equal)
    return max(
        (one for one in equal if one.cost.together.colluding <= _SEARCHED * least),
        key=lambda one: one.steps_worth,
    )


def _rank(options: Iterable[Option]) -> tuple[Option, ...]:
    """Return the distinct options in order of batch size, rounds and noise."""
    return tuple(sorted(set(options), key=lambda one: (one.batch_size, one.rounds, one.noise_multiplier)))


def _fitting(
    find: Callable[[_Number], Option], among: Iterable[_Number]
) -> tuple[list[Option], JobRefused | None]:
    """Return the options that fit among the values, and the last refusal."""
    found, refusal = [], None
    for one in among:
        try:
            found.append(find(one))
        except JobRefused as error:
            refusal = error
    return found, refusal
