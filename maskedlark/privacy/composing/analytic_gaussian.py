"""The smallest Gaussian noise of an (epsilon, delta), exactly: the analytic Gaussian mechanism.

    analytic_sigma(1.0, 1e-5)      # 3.73063..., at sensitivity 1

Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, theorem 8.
"""

import math
from typing import Final

_STEPS: Final = 200
_LOG_ROUNDING: Final = 2.0**-51  # of a logarithm of a normal probability, relatively


def analytic_sigma(epsilon: float, delta: float) -> float:
    """Find the least sigma that makes a query of L2 sensitivity 1 (epsilon, delta)-private.

    Guarantees: `gaussian_delta(result, epsilon)` is at most `delta`, and the result is within a relative
    1e-12 of the least.

    Raises:
        ValueError: epsilon is not in (0, 1000], or delta not in [1e-100, 1).
    """
    if not (0 < epsilon <= 1000 and 1e-100 <= delta < 1):
        raise ValueError("epsilon must be in (0, 1000] and delta in [1e-100, 1)")
    low, high = 2.0**-20, 2.0**20 / epsilon
    for _ in range(_STEPS):
        # By ratio: the range spans forty powers of two, and the result is to be exact relatively.
        middle = math.sqrt(low * high)
        if gaussian_delta(middle, epsilon) <= delta:
            high = middle
        else:
            low = middle
    return high


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Find the least epsilon at a delta, for noise of `sigma` on a query of L2 sensitivity 1.

    Guarantees: never below the least, and above it by what the formula's rounding can be worth: under 1e-5 of
        delta for a sigma of up to 1e6; infinity at a delta of 0.

    Raises:
        ValueError: sigma is not positive, or delta not in [0, 1).
    """
    if not (sigma > 0 and 0 <= delta < 1):
        raise ValueError("sigma must be positive and delta in [0, 1)")
    if delta == 0:
        return math.inf
    log_delta = math.log(delta)
    if _log_gaussian_delta(sigma, 0.0) <= log_delta:
        return 0.0
    low, high = 0.0, 1.0
    while _log_gaussian_delta(sigma, high) > log_delta:
        low, high = high, 2 * high
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _log_gaussian_delta(sigma, middle) > log_delta:
            low = middle
        else:
            high = middle
    return high


def _log_gaussian_delta(sigma: float, epsilon: float) -> float:
    """Return a bound on the logarithm of `gaussian_delta`, also where that is below the smallest float.

    The difference of two logarithms that are nearly equal holds few digits: their rounding is taken off it.
    """
    near = _log_normal_below(1 / (2 * sigma) - epsilon * sigma)
    far = epsilon + _log_normal_below(-1 / (2 * sigma) - epsilon * sigma)
    rounding = _LOG_ROUNDING * (1 + abs(near) + abs(far) + epsilon)
    return near + math.log(-math.expm1(far - near - rounding)) + rounding


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Return the least delta at an epsilon, for noise of `sigma` on a query of sensitivity 1.

    It is Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma).
    """
    near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
    return normal_below(near) - math.exp(epsilon + _log_normal_below(far))


def normal_below(x: float) -> float:
    """Return P(N(0, 1) <= x), with its relative precision kept far below zero."""
    return math.erfc(-x / math.sqrt(2)) / 2


def _log_normal_below(x: float) -> float:
    """Return the logarithm of that, also where it is below the smallest float."""
    # erfc leaves the normal floats below -37; from -30 down the series is exact to the logarithm's last
    # digit.
    if x > -30:
        return math.log(normal_below(x))
    square = x * x
    return (
        -square / 2
        - math.log(-x * math.sqrt(2 * math.pi))
        + math.log1p(-1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4 - 945 / square**5)
    )
