"""Noise of which the next step takes a part out again: how it is drawn, and what it costs.

    n_i = v_i + D u_i - b u_(i-1)        D = 64, u_i and v_i discrete Gaussians, b = the job's `carried`

So the weights, which add up all steps, keep (1 - beta) of a step's noise, beta = b / D, and the steps that a
record is in tell more together than one by one. Everything is an integer. v_i is small; it hides the
remainder modulo D that D u_i would show.

A record has one slot for all epochs. A whole job costs what one Gaussian release of `sensitivity` does: the
length of C g, C the inverse of what u is multiplied with (over D), at the worst slot. Against the ad server
alone the slot is secret, which hides what slots far apart do not have in common: `slots_apart`
(docs/explanation/privacy-proofs.md, "Noise that is taken out again"; docs/adr/0042-one-slot.md).

>>> round(sensitivity(0, steps=29, epochs=7) ** 2, 6)
7.0
>>> round(sensitivity(61, steps=29, epochs=7), 3)
10.836
>>> slots_apart(61, steps=29, epochs=7).slots
3
>>> best_carried(steps=29, epochs=7, momentum=0.9)
61

Source: S. Denisov, B. McMahan, K. Rush, A. Smith, A. Thakurta, "Improved Differential Privacy for SGD via
Optimal Private Linear Operators on Adaptive Streams", 2022; sums of discrete Gaussians: C. Peikert, "An
Efficient and Parallel Gaussian Sampler for Lattices", 2010; balls in bins: C. Choquette-Choo, A. Ganesh,
S. Haque, T. Steinke, A. Thakurta, "Near Exact Privacy Amplification for Matrix Mechanisms", 2025.
"""

import math
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import MIN_SCALE, tail_bound
from maskedlark.privacy.samplers import discrete_gaussian
from maskedlark.randomness import Randomness

DENOMINATOR: Final = 64
"""D: a step takes out `carried` parts of so many."""
LEAST_SCALE: Final = DENOMINATOR * MIN_SCALE
"""The smallest noise scale, in units, whose 64th part still has `MIN_SCALE`."""
MAX_EPOCHS: Final = 1_000
OWN_SCALE: Final = 8 * DENOMINATOR
"""Of v, in units.

The proof asks for three times D + b, under 384; at `LEAST_SCALE` it adds a 16,000th to a step's variance.
"""

_MOST_SLOTS: Final = 256
_UPWARD: Final = 1 + 2.0**-40

NoiseVector: TypeAlias = NDArray[np.int64]


@frozen
class StepStreams:
    """Where the noise of one step comes from: the streams of u_i, of v_i, and of u_(i-1) if there is one."""

    kept: Randomness
    own: Randomness
    before: Randomness | None


def draw_step_noise(carried: int, scale: int, count: int, streams: StepStreams) -> NoiseVector:
    """Draw one helper's noise of one step, `count` coordinates. Called by a helper.

    Args:
        carried: b, 1 to 63.
        scale: What an independent step would have, at least `LEAST_SCALE` units.
        count: How many coordinates.
        streams: Each is read from its beginning; `before` is the `kept` of the step before.

    Guarantees: exact. Over steps whose streams are independent, every linear combination of the noise has at
        least the variance that it would have for D u_i of the full scale.

    Raises:
        ValueError: a parameter is outside its range.
    """
    _check(carried)
    each = scale_to_keep(scale)
    noise = discrete_gaussian(OWN_SCALE, count, streams.own)
    noise += DENOMINATOR * discrete_gaussian(each, count, streams.kept)
    if streams.before is not None:
        # The same stream as the step before drew from, so these are its values: its noise is taken out, not
        # more added.
        noise -= carried * discrete_gaussian(each, count, streams.before)
    return noise


def scale_to_keep(scale: int) -> int:
    """Return the scale of u: a 64th of the noise's, rounded up.

    Raises:
        ValueError: `scale` is under `LEAST_SCALE`.
    """
    if scale < LEAST_SCALE:
        raise ValueError(
            f"correlated noise needs a scale of at least {LEAST_SCALE} units, not {scale}: use more frac_bits"
        )
    return -(-scale // DENOMINATOR)


def tail_of_step(carried: int, scale: int, count: int) -> int:
    """Return what a step's largest of `count` values exceeds with probability at most 2^-62."""
    _check(carried)
    of_u = tail_bound(Mechanism.GAUSSIAN, scale_to_keep(scale), count)
    return tail_bound(Mechanism.GAUSSIAN, OWN_SCALE, count) + (DENOMINATOR + carried) * of_u


def units_of_step(carried: int, scale: int) -> int:
    """Bound from above the standard deviation of one helper's step in one coordinate."""
    square = OWN_SCALE**2 + (DENOMINATOR**2 + carried**2) * scale_to_keep(scale) ** 2
    return math.isqrt(square) + 1


@lru_cache(maxsize=4096)
def sensitivity(carried: int, *, steps: int, epochs: int) -> float:
    """Return how far one record moves a job's noise, at the worst slot, in units of the clip norm.

    Never less, whatever the weights are; for `carried` 0 the root of the epochs. A record keeps its slot in
    all epochs, so its shifts are whole epochs apart. At infinitely many following steps this is exact.

    Raises:
        ValueError: a parameter is outside its range.
    """
    return math.sqrt(_product(carried, steps, epochs, 0))


@frozen
class _Apart:
    """What a secret slot hides of a record's shift.

    Attributes:
        slots: How many slots are counted, far from each other.
        overlap: How much of the squared length of a shift at least two of them have in common; under 1.
    """

    slots: int
    overlap: float


@lru_cache(maxsize=4096)
def slots_apart(carried: int, *, steps: int, epochs: int) -> _Apart:
    """Return how far apart the shifts of a record's possible slots are; see `Charge.overlap`.

    The shifts of neighbouring slots are nearly one, so not all slots count: as many, evenly spaced, as leave
    the least mean product of two of them. The product decreases with the distance up to half an epoch, and
    the way around the epoch's end is no closer.

    Raises:
        ValueError: a parameter is outside its range.
    """
    longest = _product(carried, steps, epochs, 0)

    def apart(slots: int) -> _Apart:
        overlap = _product(carried, steps, epochs, steps // slots) / longest * _UPWARD
        return _Apart(slots=slots, overlap=overlap)

    return min(
        (apart(slots) for slots in range(2, min(steps, _MOST_SLOTS) + 1)),
        key=lambda one: one.overlap + (1 - one.overlap) / one.slots,
    )


def _product(carried: int, steps: int, epochs: int, distance: int) -> float:
    """Bound the product of the shifts of two slots at a distance, in squares of the clip norm.

    It is the sum over epochs e, f of beta^|distance + (f - e) steps| / (1 - beta^2), beta = carried / 64.
    """
    if not 0 <= carried < DENOMINATOR:
        raise ValueError(f"carried must be in 0..{DENOMINATOR - 1}, not {carried}")
    if steps < 2 or not 1 <= epochs <= MAX_EPOCHS:
        raise ValueError(
            f"correlated noise is for 1 to {MAX_EPOCHS} epochs of at least 2 steps, not {epochs} of {steps}"
        )
    beta = carried / DENOMINATOR  # exact
    # Horner's rule for the sum over k of (epochs - k) beta^((k - 1) steps): epochs - k pairs are k apart.
    of_epoch, later = beta**steps, 0.0
    for behind in range(epochs - 1, 0, -1):
        later = later * of_epoch + (epochs - behind)
    total = epochs * beta**distance + later * (beta ** (steps + distance) + beta ** (steps - distance))
    return total / (1 - beta * beta) * _UPWARD


def trajectory_error(carried: int, *, rounds: int, momentum: float) -> float:
    """Return the root mean square error of the weights over all steps, per unit of noise scale.

    Called by the ad server, whose optimizer has the momentum.
    """
    powers = np.power(momentum, np.arange(1, rounds + 1))
    of_step = (1 - powers) / (1 - momentum)
    left = of_step - carried / DENOMINATOR * np.concatenate(([0.0], of_step[:-1]))
    return math.sqrt(float(np.cumsum(left * left).mean()))


def gain(carried: int, *, steps: int, epochs: int, momentum: float) -> float:
    """Return the trajectory error at equal cost, relative to independent noise."""
    rounds = steps * epochs
    return (
        sensitivity(carried, steps=steps, epochs=epochs)
        * trajectory_error(carried, rounds=rounds, momentum=momentum)
        / (math.sqrt(epochs) * trajectory_error(0, rounds=rounds, momentum=momentum))
    )


@lru_cache(maxsize=1024)
def best_carried(*, steps: int, epochs: int, momentum: float) -> int:
    """Find the `carried` with the smallest error at equal cost. Called by the ad server."""
    low, high = 1, DENOMINATOR - 1
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        at_left, at_right = (
            gain(one, steps=steps, epochs=epochs, momentum=momentum) for one in (left, right)
        )
        low, high = (low, right - 1) if at_left <= at_right else (left + 1, high)
    return min(range(low, high + 1), key=lambda one: gain(one, steps=steps, epochs=epochs, momentum=momentum))


def _check(carried: int) -> None:
    if not 1 <= carried < DENOMINATOR:
        raise ValueError(f"carried must be in 1..{DENOMINATOR - 1}, not {carried}")
