"""What is kept of every round for people to look at: the figures of the curves.

Nothing here decides anything.
"""

import math
from collections.abc import Iterable
from typing import Final

from maskedlark.frozen import frozen
from maskedlark.releases.release import deviation_of_both
from maskedlark.reports.task import Task

AS_GOOD: Final = 0.01
"""A loss that is larger by at most this share is no worse: some thousand records do not tell them apart."""


@frozen
class RoundFigures:
    """A job after some rounds.

    Attributes:
        rounds_done: 0 for the model as it was submitted.
        finished_at_s: Unix seconds.
        learning_rate: Of the step that led here; None before the first.
        gradient_norm: The L2 norm of the noisy mean gradient of that step.
        noise_to_signal: See `noise_to_signal`.
        loss: Mean loss on the evaluation set; None where it was not evaluated.
        accuracy: Share of the evaluation set that is classified right; None also where the loss is no
            classifier's.
        auc: There, of two classes; see `adserver.training.inference.Evaluation`.
        auc_low: The lower end of the AUC's 99 % interval for people like those of the evaluation set.
        auc_high: The upper end.
        calibrated_loss: The mean loss there with the best scale and shift of the logit, by which weights are
            chosen; None but for two classes.
    """

    rounds_done: int
    finished_at_s: float
    learning_rate: float | None = None
    gradient_norm: float | None = None
    noise_to_signal: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    calibrated_loss: float | None = None

    @property
    def choosing_loss(self) -> float | None:
        """The loss by which weights are chosen: that which calibration leaves, where there is one."""
        return self.loss if self.loss is None or self.calibrated_loss is None else self.calibrated_loss


NOT_EVALUATED: Final = RoundFigures(rounds_done=0, finished_at_s=math.nan)
"""What is known of a job of which no round was evaluated."""


def is_as_good(loss: float, least: float) -> bool:
    """Return whether a later round with this loss is as good as an earlier one with the least loss so far.

    A loss that is not a number never is.
    """
    # `abs`, since a loss of log-rates may lie below 0.
    return math.isfinite(loss) and loss <= least + AS_GOOD * abs(least)


def has_risen(last: float, first: float) -> bool:
    """Return whether a loss is above the first one by more than records tell, and than figures print."""
    return not is_as_good(last, first) and f"{last:.4f}" != f"{first:.4f}"


def best_evaluated(figures: Iterable[RoundFigures]) -> RoundFigures | None:
    """Return the latest round that was as good as any before it: the weights that a job keeps as its best.

    The model as it was submitted is none of them.

    Args:
        figures: Of a job's rounds, in order.
    """
    best, least = None, math.inf
    for one in figures:
        loss = one.choosing_loss
        # The least loss moves down only: else a slow rise within 1 % of each last one would lead anywhere.
        if one.rounds_done and loss is not None and (best is None or is_as_good(loss, least)):
            best, least = one, min(least, loss)
    return best


def noise_norm(task: Task, scale: int, *, num_parameters: int, denominator: float) -> float:
    """Return the root mean square L2 norm of both helpers' noise in a mean gradient, in its units.

    Each helper's noise has the scale, in units of 2^-frac_bits.
    """
    deviation = deviation_of_both(task.mechanism) * scale
    return math.ldexp(math.sqrt(num_parameters) * deviation, -task.frac_bits) / denominator


NOISE_TO_SIGNAL: Final = (
    "noise / signal: the length of both helpers' noise over that of the mean gradient under it; above 1 a "
    "step is mostly noise, which rounds average out; a gap where noise hides the gradient"
)
"""What that curve is, for people."""


def noise_to_signal(gradient_norm: float, noise: float) -> float | None:
    """Estimate the ratio of the noise's norm to that of the gradient under it.

    Noise over sqrt(norm^2 - noise^2).

    The noise is independent of the gradient, so their squared norms add up in expectation. None where the
    noisy gradient is no longer than noise alone: the signal is lost in it (or too few records were sampled,
    and the helpers sent noise around zero).
    """
    signal = gradient_norm**2 - noise**2
    return noise / math.sqrt(signal) if signal > 0 else None
