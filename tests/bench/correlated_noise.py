"""Correlated noise under random allocation, against the ad server with one helper.

What it could save, before anybody builds it.

    python -m tests.bench.correlated_noise [--json]          the analysis, about two minutes of one core
    python -m tests.bench.correlated_training [--json]       trainings

Independent noise adds z_i to the gradient sum x_i of step i. Correlated noise adds (C^-1 z)_i, C lower
triangular: everything released is post-processing of C x + z, one Gaussian release (Denisov et al. 2022), of
sensitivity max |sum over epochs e of C[:, s_e] g_e| over slots s_e, one in each epoch, and |g_e| <= 1.
The weights are A times the released sums (A: prefix sums, with momentum .9), and have the error A C^-1 z.
Here C is Toeplitz with the first p coefficients of (1 - beta x)^-a; a, beta and p are searched.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.optimize import minimize
from scipy.signal import lfilter

from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.composing.analytic_gaussian import gaussian_epsilon
from maskedlark.privacy.mechanism import Mechanism

DELTA: Final = 1e-5
MOMENTUM: Final = 0.9
_SHAPES: Final = ((0.2, 0.9), (0.5, 0.9), (0.5, 0.99))  # where searches for (a, beta) begin
_FLOOR_STEPS: Final = 60
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Epochs of steps, and the colluding epsilon that independent noise is given."""

    name: str
    epochs: int
    steps: int
    epsilons: tuple[float, ...] = (8.0,)


SCHEDULES: Final = (
    Schedule(name="wbcd, README (all records, 60 rounds)", epochs=60, steps=1, epsilons=(4.0, 8.0)),
    Schedule(name="wbcd, utility.md (all records, 30 rounds)", epochs=30, steps=1, epsilons=(1.0, 8.0)),
    Schedule(name="mnist, README (7 x 29)", epochs=7, steps=29, epsilons=(8.0, 21.5)),
    Schedule(name="mnist, utility.md (2 x 50)", epochs=2, steps=50, epsilons=(8.0,)),
    Schedule(name="mnist, 50,000 records (13 x 15)", epochs=13, steps=15),
    Schedule(name="mnist, 50,000 records (20 x 6)", epochs=20, steps=6),
    Schedule(name="online_shoppers, utility.md (17 x 9)", epochs=17, steps=9, epsilons=(8.0, 13.5)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The first `bands` coefficients of (1 - decay x)^-power: never negative, never rising."""

    power: float
    decay: float
    bands: int

    def coefficients(self, length: int) -> Matrix:
        """With zeros to a length."""
        k = np.arange(1, min(self.bands, length))
        head = np.cumprod(np.concatenate(([1.0], self.decay * (k - 1 + self.power) / k)))
        return np.pad(head, (0, length - len(head)))


INDEPENDENT: Final = Family(power=0.5, decay=0.9, bands=1)


def workload(length: int, momentum: float) -> Matrix:
    """Coefficients of A: how much of a step's sum is in the weights so many steps later."""
    found: Matrix = lfilter([1.0], [1.0, -(1.0 + momentum), momentum], np.eye(1, length)[0])
    return found


def sensitivity(gram: Matrix, epochs: int, steps: int) -> float:
    """At least the largest norm of sum over e of C[:, s_e] g_e, for gram = C^T C.

    Exact where C is not negative and has at most steps + 1 bands.

    The square is sum over e, f of gram[s_e, s_f] <g_e, g_f>, at most the same sum of absolute values. Its
    terms of one epoch and of neighbours (whose slots may follow each other) are maximised exactly, slot after
    slot along the chain. A term of epochs further apart is bounded by the mean of two of its maxima, over the
    other's slot and over its own, so that it falls apart into one term for each slot.
    """
    blocks = np.abs(gram).reshape(epochs, steps, epochs, steps)
    of_slot = np.empty((epochs, steps))
    for e in range(epochs):
        far = [f for f in range(epochs) if abs(e - f) > 1]
        of_slot[e] = np.diagonal(blocks[e, :, e, :]) + blocks[e][:, far].max(axis=2).sum(axis=1)
    best = of_slot[0]
    for e in range(1, epochs):
        best = (best[:, None] + 2 * blocks[e - 1, :, e]).max(axis=0) + of_slot[e]
    return math.sqrt(float(best.max()))


def sensitivity_of_one_slot(gram: Matrix, epochs: int, steps: int) -> float:
    """The same where a record keeps its slot in all epochs, which the product does not do."""
    blocks = np.abs(gram).reshape(epochs, steps, epochs, steps)
    return math.sqrt(float(np.einsum("esfs->s", blocks).max()))


def gram_of(coefficients: Matrix) -> Matrix:
    """C^T C of a lower triangular Toeplitz C."""
    c: Matrix = toeplitz(coefficients, np.zeros(len(coefficients)))
    return c.T @ c


def errors(coefficients: Matrix, momentum: float) -> tuple[float, float]:
    """RMSE of the weights over all steps, and of the last, per unit of noise z."""
    length = len(coefficients)
    b = lfilter(workload(length, momentum), coefficients, np.eye(1, length)[0])
    square = np.cumsum(b * b)
    return math.sqrt(square.mean()), math.sqrt(square[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A family's best member for a schedule, and its RMSE over independent noise's at equal epsilon."""

    family: Family
    ratio: float
    ratio_last: float


def choose(schedule: Schedule, momentum: float, *, is_one_slot: bool = False) -> Choice:
    """The member with the smallest error of the trajectory at equal sensitivity."""
    length, bound = schedule.epochs * schedule.steps, sensitivity_of_one_slot if is_one_slot else sensitivity
    base, base_last = errors(INDEPENDENT.coefficients(length), momentum)
    root = math.sqrt(schedule.epochs)

    def ratio(family: Family) -> tuple[float, float]:
        c = family.coefficients(length)
        of_all, last = errors(c, momentum)
        costs = bound(gram_of(c), schedule.epochs, schedule.steps) / root
        return costs * of_all / base, costs * last / base_last

    best = Choice(family=INDEPENDENT, ratio=1.0, ratio_last=1.0)
    for bands in sorted({2, 4, schedule.steps, 2 * schedule.steps, 4 * schedule.steps, length} - {1}):

        def at(x: NDArray[np.float64], bands: int = bands) -> Family:
            power, decay = (1 / (1 + math.exp(-float(value))) for value in x)
            return Family(power=power, decay=decay, bands=bands)

        for start in _SHAPES:
            x0 = [math.log(value / (1 - value)) for value in start]
            found = minimize(
                lambda x: ratio(at(x))[0],
                x0,
                method="Nelder-Mead",
                options={"maxfev": 40, "xatol": 0.02, "fatol": 1e-4},
            )
            of_all, last = ratio(at(found.x))
            if of_all < best.ratio - 1e-3:
                best = Choice(family=at(found.x), ratio=of_all, ratio_last=last)
    return best


def choose_simple(schedule: Schedule, momentum: float) -> Choice:
    """The best of C = 1 / (1 - decay x): the noise of a step is z_i - decay z_(i-1), which keeps no state."""
    length = schedule.epochs * schedule.steps
    base, base_last = errors(INDEPENDENT.coefficients(length), momentum)
    found = []
    for decay in 1 - np.geomspace(0.003, 1, 60):
        family = Family(power=1.0, decay=float(decay), bands=length)
        c = family.coefficients(length)
        costs = sensitivity(gram_of(c), schedule.epochs, schedule.steps) / math.sqrt(schedule.epochs)
        of_all, last = errors(c, momentum)
        found.append(Choice(family=family, ratio=costs * of_all / base, ratio_last=costs * last / base_last))
    return min(found, key=lambda one: one.ratio)


def floor(schedule: Schedule, momentum: float) -> float:
    """No C whatever has a ratio below this.

    For any distribution over participations, with mean outer product M, the sensitivity's square is at
    least tr(C^T C M), and |A C^-1|_F^2 tr(C^T C M) is at least the nuclear norm of A M^(1/2), squared. M
    is improved by Frank and Wolfe's steps toward participations (a slot and a sign in each epoch).
    """
    length = schedule.epochs * schedule.steps
    a = toeplitz(workload(length, momentum), np.zeros(length))
    h = a.T @ a
    uniform = np.kron(np.ones((schedule.epochs,) * 2), np.full((schedule.steps,) * 2, 1 / schedule.steps**2))
    for e in range(schedule.epochs):
        rows = slice(e * schedule.steps, (e + 1) * schedule.steps)
        uniform[rows, rows] = np.eye(schedule.steps) / schedule.steps
    m, best = (np.eye(length) / schedule.steps + uniform) / 2, 0.0
    for turn in range(_FLOOR_STEPS):
        value, x = _nuclear(m, h)
        best = max(best, value)
        worst = _participation(x, schedule.epochs, schedule.steps)
        tries = [m + size * (np.outer(worst, worst) - m) for size in (0.3, 0.1, 0.03, 2 / (turn + 4) ** 2)]
        m = max(tries, key=lambda one: _nuclear(one, h)[0])
    return best / (math.sqrt(schedule.epochs) * float(np.linalg.norm(a)))


def _nuclear(m: Matrix, h: Matrix) -> tuple[float, Matrix]:
    """The nuclear norm of A M^(1/2), and twice its gradient by M."""
    values, vectors = np.linalg.eigh(m)
    values = np.maximum(values, 1e-12)
    half, inverse = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
    inner_values, inner = np.linalg.eigh(half @ h @ half)
    roots = np.sqrt(np.maximum(inner_values, 0))
    return float(roots.sum()), inverse @ (inner * roots @ inner.T) @ inverse


def _participation(x: Matrix, epochs: int, steps: int) -> Matrix:
    """Slots and signs that make v^T x v large: improved one epoch at a time."""
    best, best_value = np.zeros(len(x)), -math.inf
    for start in range(0, steps, max(1, steps // 4)):
        v = np.zeros((epochs, steps))
        v[:, start] = 1
        flat = v.reshape(-1)
        for _ in range(3):
            for e in range(epochs):
                rows = slice(e * steps, (e + 1) * steps)
                v[e] = 0
                linear = x[rows] @ flat
                scores = np.diagonal(x)[rows] + 2 * np.abs(linear)
                s = int(scores.argmax())
                v[e, s] = 1.0 if linear[s] >= 0 else -1.0
        value = float(flat @ x @ flat)
        if value > best_value:
            best, best_value = flat.copy(), value
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """At equal error of the trajectory: colluding, and against the ad server alone.

    Attributes:
        at_floor: Colluding, if a C reached the floor.
        alone_independent: With the amplification of secret slots.
        alone_correlated: Without any: both helpers' noise, charged like the collusion.
    """

    independent: float
    correlated: float
    at_floor: float
    alone_independent: float
    alone_correlated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What correlated noise does for a schedule.

    Attributes:
        slack: The sensitivity that is charged, over that of the worst participation that a search met.
        floor: See `floor`.
        one_slot: The choice if records kept their slot over all epochs.
    """

    schedule: Schedule
    momentum: float
    choice: Choice
    slack: float
    floor: float
    one_slot: Choice
    simple: Choice
    epsilons: tuple[Epsilon, ...]


def shift(epsilon: float) -> float:
    """The sensitivity over the noise at which a Gaussian release costs epsilon."""
    low, high = 1e-4, 1e4
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(1 / middle, DELTA) < epsilon else (low, middle)
    return low


def figure(schedule: Schedule, momentum: float) -> Figure:
    """All of one row."""
    choice, least = choose(schedule, momentum), floor(schedule, momentum)
    one_slot = choose(schedule, momentum, is_one_slot=True)
    gram = gram_of(choice.family.coefficients(schedule.epochs * schedule.steps))
    met = _participation(gram, schedule.epochs, schedule.steps)
    found = []
    for epsilon in schedule.epsilons:
        mu = shift(epsilon)
        at = [
            gaussian_epsilon(1 / (mu * r), DELTA) for r in (choice.ratio, least, choice.ratio / math.sqrt(2))
        ]
        found.append(
            Epsilon(
                independent=epsilon,
                correlated=at[0],
                at_floor=at[1],
                alone_independent=_alone(schedule, math.sqrt(schedule.epochs) / mu),
                alone_correlated=at[2],
            )
        )
    return Figure(
        schedule=schedule,
        momentum=momentum,
        choice=choice,
        slack=sensitivity(gram, schedule.epochs, schedule.steps) / math.sqrt(float(met @ gram @ met)),
        floor=least,
        one_slot=one_slot,
        simple=choose_simple(schedule, momentum),
        epsilons=tuple(found),
    )


def _alone(schedule: Schedule, noise: float) -> float:
    """What the product charges against the ad server alone for independent noise."""
    charge = Charge(
        mechanism=Mechanism.GAUSSIAN,
        noise_multiplier=noise,
        sampling_rate=1.0,
        rounds=schedule.epochs,
        epoch_steps=schedule.steps,
    )
    return spent([charge], DELTA).ad_server


def main() -> None:
    """Print the analysis."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    is_json = parser.parse_args().json
    for momentum in (MOMENTUM, 0.0):
        for schedule in SCHEDULES:
            found = figure(schedule, momentum)
            if is_json:
                sys.stdout.write(json.dumps(asdict(found)) + "\n")
                continue
            family = found.choice.family
            sys.stdout.write(
                f"{schedule.name}, momentum {momentum:g}: ratio {found.choice.ratio:.3f} (last step"
                f" {found.choice.ratio_last:.3f}, floor {found.floor:.3f}, one slot"
                f" {found.one_slot.ratio:.3f}); power {family.power:.2f} decay {family.decay:.3f}"
                f" bands {family.bands}, bound over worst met {found.slack:.3f};"
                f" 1 / (1 - {found.simple.family.decay:.3f} x) {found.simple.ratio:.3f}\n"
            )
            for one in found.epsilons:
                sys.stdout.write(
                    f"    colluding {one.independent:g} -> {one.correlated:.2f} (no less than"
                    f" {one.at_floor:.2f}); ad server alone {one.alone_independent:.2f} ->"
                    f" {one.alone_correlated:.2f}\n"
                )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
