"""What is kept of every round for people to look at: the figures of the curves.

Nothing here decides anything.
"""

import math

from maskedlark.frozen import frozen
from maskedlark.privacy.clip import Clip
from maskedlark.releases.job import JobSpec, round_units
from maskedlark.releases.release import deviation_of_both
from maskedlark.reports.task import Task


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
    """

    rounds_done: int
    finished_at_s: float
    learning_rate: float | None = None
    gradient_norm: float | None = None
    noise_to_signal: float | None = None
    loss: float | None = None
    accuracy: float | None = None


def noise_norm(
    task: Task, job: JobSpec, *, num_parameters: int, denominator: float, clip: Clip | None = None
) -> float:
    """Return the root mean square L2 norm of both helpers' noise in a mean gradient, in its units.

    An adaptive job has it of each round's `clip`.
    """
    return noise_norm_of(
        task, round_units(task, job, clip), num_parameters=num_parameters, denominator=denominator
    )


def noise_norm_of(task: Task, scale: int, *, num_parameters: int, denominator: float) -> float:
    """Return the same for each helper's noise scale in units of 2^-frac_bits."""
    deviation = deviation_of_both(task.mechanism) * scale
    return math.ldexp(math.sqrt(num_parameters) * deviation, -task.frac_bits) / denominator


def noise_to_signal(gradient_norm: float, noise: float) -> float | None:
    """Estimate the ratio of the noise's norm to that of the gradient under it.

    Noise over sqrt(norm^2 - noise^2).

    The noise is independent of the gradient, so their squared norms add up in expectation. None where the
    noisy gradient is no longer than noise alone: the signal is lost in it (or too few records were sampled,
    and the helpers sent noise around zero).
    """
    signal = gradient_norm**2 - noise**2
    return noise / math.sqrt(signal) if signal > 0 else None
