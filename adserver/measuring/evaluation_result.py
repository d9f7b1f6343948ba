"""How good a model is, with how far to trust each number.

Read off one noisy histogram. Values are those of the smoothed histogram; each lies within its interval, which
is computed on the noisy one (`adserver.measuring.evaluation_intervals`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from adserver.measuring.estimate import FIGURES, Estimate
from adserver.measuring.evaluation_intervals import NoisyCounts
from adserver.measuring.evaluation_metrics import Histogram, Numbers, SmoothedCounts, smooth
from adserver.measuring.intervals import Interval
from adserver.measuring.result import ReleasedResult
from adserver.records.frames import ColumnTypes, arrow_stream, frame
from adserver.records.html_table import html_note, html_table, text_table
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.release import deviation_of_both

if TYPE_CHECKING:
    import pandas as pd

GROUPS: Final = 10
"""The most groups of a calibration."""
_MEAN_OVER_RATE: Final = "mean_over_rate"
# Predictions whose mean is further from the base rate than this share of it are worth a warning.
_OFF: Final = 0.1
# A pair in one bin counts half, whichever the model ranks higher: a larger share of them hides an AUC.
_MOST_TIES: Final = 1 / 3
_LEARNED: Final = (
    "these are reports that a job learned from: if this is its model, new people's figures will be lower. "
    "Seal another dataset for a figure to report"
)
_COLUMN_TYPES: Final[ColumnTypes] = {
    "metric": str,
    **dict.fromkeys(FIGURES, float),
    "no_interval": str,
}

# How a figure is computed, and its interval.
_Figure: TypeAlias = tuple[Callable[[SmoothedCounts], Numbers], Callable[[NoisyCounts], Interval]]
OF_LABELS: Final[Mapping[str, _Figure]] = {
    "loss": (SmoothedCounts.loss, NoisyCounts.loss),
    "normalised_entropy": (SmoothedCounts.normalised_entropy, NoisyCounts.normalised_entropy),
    "accuracy": (SmoothedCounts.accuracy, NoisyCounts.accuracy),
    "roc_auc": (SmoothedCounts.roc_auc, NoisyCounts.roc_auc),
    "pr_auc": (SmoothedCounts.pr_auc, NoisyCounts.pr_auc),
    "positives": (SmoothedCounts.share_of_positives, NoisyCounts.share_of_positives),
    _MEAN_OVER_RATE: (SmoothedCounts.mean_over_rate, NoisyCounts.mean_over_rate),
}
"""What is read off a model of one output: positives are the records of label 1."""
_OF_CHOICES: Final[Mapping[str, _Figure]] = {
    "accuracy": (SmoothedCounts.share_of_positives, NoisyCounts.share_of_positives),
    "confidence_roc_auc": (SmoothedCounts.roc_auc, NoisyCounts.roc_auc),
}
"""What is read off a model of several classes.

Positives are the records whose first choice is right, scores the confidence in it. How likely the model held
the true class where it was wrong is not in the histogram, so there is no loss."""


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
        was_trained_on: Whether a job has trained on these reports. Which file a job exported is not known, so
            the model may be another.
    """

    is_of_classes: bool
    metrics: tuple[Metric, ...]
    roc: tuple[CurvePoint, ...]
    pr: tuple[CurvePoint, ...]
    calibration: tuple[CurvePoint, ...]
    num_bins: int
    noise_scale: float
    was_trained_on: bool = False

    def __repr__(self) -> str:
        """Show each figure with its interval, a line for each."""
        return self.titled(text_table(*self._shown()))

    def _repr_html_(self) -> str:
        """Return each figure with its interval as a table, for a notebook."""
        return html_table(*self._shown()) + html_note(self.caption)

    def _shown(self) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
        rows = [(one.name, str(one.estimate)) for one in self.metrics]
        return ("metric", "value"), [*rows, *(("warning", one) for one in self.warnings())]

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each metric: its estimate, standard error and 99 % interval.

        Where an interval is missing, its ends and the standard error are, too, and `no_interval` says why.
        The frame's `attrs` have the caption.
        """
        return frame(self._to_rows(), _COLUMN_TYPES, self.caption)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the same rows as an Arrow stream, for pandas, polars or duckdb."""
        return arrow_stream(self._to_rows(), _COLUMN_TYPES, requested_schema)

    def _to_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of each metric by name."""
        for one in self.metrics:
            missing = () if one.estimate.no_interval is None else ("standard_error", "low", "high")
            yield {"metric": one.name, **asdict(one.estimate), **dict.fromkeys(missing)}

    @property
    def shows_mean(self) -> bool:
        """Whether the mean prediction over the base rate is known beyond the noise."""
        return any(one.name == _MEAN_OVER_RATE and one.estimate.no_interval is None for one in self.metrics)

    def warnings(self) -> tuple[str, ...]:
        """Return what is wrong with the predictions or figures, each with what to do about it."""
        warnings = [_LEARNED] if self.was_trained_on else []
        found = [one.estimate for one in self.metrics if one.name == _MEAN_OVER_RATE]
        if found and not found[0].low <= 1 <= found[0].high and abs(found[0].value - 1) > _OFF:
            remedy = f"`adserver model calibrate OUT.onnx --job ID --evaluation {self.query_id[:12]}`"
            warnings.append(
                f"the mean prediction is {found[0].value:.2f} of the base rate: {remedy} makes the job's "
                "model add up, at no further cost"
            )
        ties = self._share_of_ties()
        if not self.is_of_classes and ties > _MOST_TIES:
            warnings.append(
                f"{ties:.0%} of the pairs of a record of label 1 and another one have scores in the same of "
                f"{self.num_bins} bins, where no score is higher: roc_auc and its interval are nearer to 0.5 "
                "than the model's own. Evaluate the model once it is calibrated (`adserver model calibrate`, "
                "job.calibrate), or with more bins"
            )
        return tuple(warnings)

    def _share_of_ties(self) -> float:
        """Return which share of the pairs of a positive and a negative is in one bin; 0 if not known."""
        rates = np.array([(one.x.value, one.y.value) for one in self.roc], np.float64).reshape(-1, 2)
        return float(np.nan_to_num(np.diff(rates, axis=0).prod(1).sum()))

    def metric(self, name: str) -> Estimate:
        """Return one figure by name.

        Raises:
            KeyError: there is no such figure.
        """
        for one in self.metrics:
            if one.name == name:
                return one.estimate
        raise KeyError(
            f"there is no metric {name!r}: use one of {', '.join(one.name for one in self.metrics)}"
        )


@frozen
class _Readings:
    """What is read off a histogram."""

    metrics: tuple[Metric, ...]
    roc: tuple[CurvePoint, ...]
    pr: tuple[CurvePoint, ...]
    calibration: tuple[CurvePoint, ...]


def read(noisy: Histogram, *, mechanism: Mechanism, noise_scale: float, is_of_classes: bool) -> _Readings:
    """Read everything off a noisy histogram (2, B), in records.

    Args:
        noisy: What both helpers' answers add to.
        mechanism: Their noise.
        noise_scale: Of each helper, in records.
        is_of_classes: See `EvaluationResult`.
    """
    smoothed = SmoothedCounts(counts=smooth(noisy) if mechanism is not Mechanism.NONE else noisy)
    counts = NoisyCounts(
        noisy=noisy,
        smoothed=smoothed.counts,
        mechanism=mechanism,
        noise_variance=(noise_scale * deviation_of_both(mechanism)) ** 2,
    )
    groups = smoothed.calibration_groups(int(counts.num_groups(GROUPS)))
    by_group = (groups == np.arange(groups[-1] + 1)[:, None]).astype(np.float64)
    edges = np.arange(noisy.shape[1] + 1) / noisy.shape[1]

    def estimates(values: Numbers, interval: Interval) -> list[Estimate]:
        return _estimates(values, interval, mechanism)

    recall = estimates(smoothed.true_positive_rate(), counts.rate_at_or_above(1))
    fallout = estimates(smoothed.false_positive_rate(), counts.rate_at_or_above(0))
    return _Readings(
        metrics=tuple(
            Metric(name=name, estimate=estimates(figure(smoothed), interval(counts))[0])
            for name, (figure, interval) in (_OF_CHOICES if is_of_classes else OF_LABELS).items()
        ),
        roc=_points(edges, fallout, recall),
        pr=_points(edges, recall, estimates(smoothed.precision(), counts.precision())),
        calibration=_points(
            edges[np.flatnonzero(np.diff(groups, prepend=-1))],
            estimates(smoothed.mean_score(groups), counts.mean_score(by_group)),
            estimates(smoothed.observed_share(groups), counts.observed_share(by_group)),
        ),
    )


def _estimates(values: Numbers, interval: Interval, mechanism: Mechanism) -> list[Estimate]:
    """Return a figure's estimates: each value is within its interval."""
    low, high = interval.low, interval.high
    if mechanism is Mechanism.NONE:  # a rounding error may be between a value and its interval
        low, high = np.minimum(low, values), np.maximum(high, values)
    else:
        # Smoothing has moved a value, and its interval is that of the noisy one: they must not disagree.
        values = np.clip(values, np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf))
    found = np.broadcast_arrays(values, interval.standard_error, low, high)
    return [
        Estimate.or_none(value, error, least, most, mechanism)
        for value, error, least, most in zip(*(np.atleast_1d(one).tolist() for one in found), strict=True)
    ]


def _points(thresholds: Numbers, x: Sequence[Estimate], y: Sequence[Estimate]) -> tuple[CurvePoint, ...]:
    """Return the points of a curve that are known."""
    return tuple(
        CurvePoint(threshold=at, x=across, y=up)
        for at, across, up in zip(thresholds.tolist(), x, y, strict=True)
        if not np.isnan(across.value + up.value)
    )
