"""How far both helpers' noise moves the weights of a job, by its learning-rate schedule and momentum.

Only of steps that are linear in the gradient: SGD, with momentum or without.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from adserver.records.training_plan import Schedule
from maskedlark.privacy.correlated import DENOMINATOR


class _WeightsError(NamedTuple):
    """The root mean square error of the weights, per unit of a step's noise and of the learning rate."""

    at_end: float
    over_steps: float


# The planner asks for each batch size, and the sum over all rounds is the same for most of them
@lru_cache(maxsize=1024)
def weights_error(carried: int, *, rounds: int, momentum: float, schedule: Schedule) -> _WeightsError:
    """Return the error after the last step, and its root mean square over all steps.

    The noise of step t is u_t - b u_(t-1), with b = carried / 64 and independent u of variance 1:

        v_t = momentum v_(t-1) + u_t - b u_(t-1)        w_t = w_(t-1) + factor_t v_t

    The variances and covariances of (w, v, u) follow from step to step, exactly.
    """
    # of_w and of_v are variances, of_wv and of_wu covariances; that of u is 1
    beta = carried / DENOMINATOR
    of_w = of_v = of_wv = of_wu = total = 0.0
    for index in range(rounds):
        factor = schedule.factor(index, rounds)
        before = momentum * of_wv - beta * of_wu  # of w_(t-1) and v_t
        of_v = momentum * momentum * of_v + 1 + (beta * beta - 2 * momentum * beta if index else 0.0)
        of_w += 2 * factor * before + factor * factor * of_v
        of_wv, of_wu = before + factor * of_v, factor
        total += of_w
    return _WeightsError(at_end=math.sqrt(of_w), over_steps=math.sqrt(total / rounds))
