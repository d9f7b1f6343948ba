"""How good a model is, with how far to trust each number.

Read off one noisy histogram, with intervals by parametric bootstrap.

The smoothed histogram stands in for the truth. Many times, as many records as it holds are drawn anew (each
cell from a Poisson distribution), the noise of both helpers is added anew, and everything is read off again
in the same way. How far these readings stray from the stand-in's is how far the real reading strays from the
truth: an interval holds both the sampling of records and the noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from adserver.measuring import evaluation_metrics as metrics
from adserver.measuring.evaluation_metrics import Figure, Histogram
from adserver.measuring.result import CONFIDENCE, NOT_KNOWN, Estimate, ReleasedResult
from adserver.records.frames import frame
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism

if TYPE_CHECKING:
    import pandas as pd

_REPETITIONS: Final = 1_000
_MOST_NUMBERS: Final = 1 << 23
_GROUPS: Final = 10


@frozen
class Metric:
    """One figure.

    Attributes:
        name: Such as roc_auc.
        estimate: Its value with its 99 % interval; NaN where no record is left to read it off.
    """

    name: str
    estimate: Estimate


@frozen
class CurvePoint:
    """One point of a curve.

    Attributes:
        threshold: The least score of what it is about.
        x: Of ROC the false positive rate, of PR the recall, of calibration the mean score.
        y: Of ROC the true positive rate, of PR the precision, of calibration the observed share of positives.
    """

    threshold: float
    x: Estimate
    y: Estimate


@frozen
class EvaluationResult(ReleasedResult):
    """The answer to an evaluation.

    Attributes:
        is_of_classes: Whether positives are records whose first choice among classes is right, not those of
            label 1.
        metrics: The figures.
        roc: The ROC curve, from the lowest threshold up.
        pr: The precision-recall curve, where there is a precision.
        calibration: Groups of about equally many records, from the lowest score up.
        num_bins: The score bins.
        noise_scale: Each helper's, in records.
    """

    is_of_classes: bool
    metrics: tuple[Metric, ...]
    roc: tuple[CurvePoint, ...]
    pr: tuple[CurvePoint, ...]
    calibration: tuple[CurvePoint, ...]
    num_bins: int
    noise_scale: float

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each metric: its estimate, standard error and 99 % interval."""
        return frame({"metric": one.name, **asdict(one.estimate)} for one in self.metrics)

    def metric(self, name: str) -> Estimate:
        """Return one figure by name.

        Raises:
            KeyError: there is no such figure.
        """
        for one in self.metrics:
            if one.name == name:
                return one.estimate
        raise KeyError(f"no {name!r}: there are {', '.join(one.name for one in self.metrics)}")


@frozen
class Readings:
    """What is read off a histogram."""

    metrics: tuple[Metric, ...]
    roc: tuple[CurvePoint, ...]
    pr: tuple[CurvePoint, ...]
    calibration: tuple[CurvePoint, ...]


def read(
    noisy: Histogram, *, mechanism: Mechanism, noise_scale: float, is_of_classes: bool, seed: int
) -> Readings:
    """Read everything off a noisy histogram (2, B), in records.

    Args:
        noisy: What both helpers' answers add to.
        mechanism: Their noise.
        noise_scale: Of each helper, in records.
        is_of_classes: See `EvaluationResult`.
        seed: Of the bootstrap, so that the same answer reads the same.
    """
    counts = metrics.smooth(noisy) if mechanism is not Mechanism.NONE else noisy
    repeated = _resample(counts, mechanism, noise_scale, np.random.default_rng(seed))
    figures: Mapping[str, Figure] = metrics.OF_CHOICES if is_of_classes else metrics.OF_LABELS
    groups = metrics.calibration_groups(counts, _GROUPS)
    edges = np.arange(counts.shape[1] + 1) / counts.shape[1]

    def estimates(figure: Figure) -> list[Estimate]:
        return _estimates(figure, counts, repeated)

    recall = estimates(metrics.true_positive_rate)
    return Readings(
        metrics=tuple(Metric(name=name, estimate=estimates(figure)[0]) for name, figure in figures.items()),
        roc=_points(edges, estimates(metrics.false_positive_rate), recall),
        pr=_points(edges, recall, estimates(metrics.precision)),
        calibration=_points(
            edges[np.flatnonzero(np.diff(groups, prepend=-1))],
            estimates(metrics.mean_score(groups)),
            estimates(metrics.observe_share(groups)),
        ),
    )


def _resample(
    counts: Histogram, mechanism: Mechanism, noise_scale: float, random: np.random.Generator
) -> Histogram:
    """Draw (repetitions, 2, B) histograms that might have been released if the counts were the truth."""
    repetitions = min(_REPETITIONS, max(100, _MOST_NUMBERS // counts.size))
    drawn = random.poisson(counts, (repetitions, *counts.shape)).astype(np.float64)
    match mechanism:
        case Mechanism.NONE:
            return drawn
        case Mechanism.GAUSSIAN:
            draw = random.normal
        case Mechanism.LAPLACE:
            draw = random.laplace
        case _:
            assert_never(mechanism)
    for _ in range(2):  # helpers
        drawn += draw(0.0, noise_scale, drawn.shape)
    return metrics.smooth(drawn)


def _estimates(figure: Figure, counts: Histogram, repeated: Histogram) -> list[Estimate]:
    """Return a figure's estimates with their intervals.

    If the repeated readings lie to one side of the figure that they repeat, then the truth is expected on the
    other side of the reading, as far away.
    """
    value = np.atleast_1d(figure(counts))
    read_again = figure(repeated).reshape(len(repeated), -1)
    is_known = np.isfinite(value) & np.isfinite(read_again).any(0)
    strays = np.where(np.isfinite(read_again) & is_known, read_again - value, 0.0)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(strays, [1 - tail, tail], axis=0)
    ceiling = 1.0 if figure not in (metrics.loss, metrics.normalised_entropy) else np.inf
    found = zip(
        value,
        strays.std(0),
        np.clip(value - low, 0.0, ceiling),
        np.clip(value - high, 0.0, ceiling),
        is_known,
        strict=True,
    )
    return [
        (
            Estimate(value=float(at), standard_error=float(error), low=float(least), high=float(most))
            if known
            else NOT_KNOWN
        )
        for at, error, least, most, known in found
    ]


def _points(
    thresholds: NDArray[np.float64], x: Sequence[Estimate], y: Sequence[Estimate]
) -> tuple[CurvePoint, ...]:
    """Return the points of a curve that are known."""
    return tuple(
        CurvePoint(threshold=at, x=across, y=up)
        for at, across, up in zip(thresholds.tolist(), x, y, strict=True)
        if not np.isnan(across.value + up.value)
    )
