"""What a histogram of scores says of a model.

All of it is arithmetic on what was released, so none of it costs privacy.

A histogram is (..., 2, B): negatives and positives by score bin, the lowest score first. The leading axes
hold several of them.

The noise is taken out of the counts as follows. Of each row, counts are added up from the highest score down;
sums of true counts never fall, so the noisy sums are replaced by the nearest ones that never fall, and the
differences are the smoothed counts. Cutting negative counts off would not do: in the many bins that are
nearly empty it keeps the noise that adds and drops the noise that subtracts, and the false counts pull AUC
down (with 1,000 bins and epsilon 1, by 0.04 of 0.91; this, by less than 0.001).
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Histogram: TypeAlias = NDArray[np.float64]
Figure: TypeAlias = Callable[[Histogram], NDArray[np.float64]]
"""From histograms (..., 2, B) to a number, or an array of numbers, each."""


def smooth(noisy: Histogram) -> Histogram:
    """Return histograms without negative counts, as described above.

    Each row keeps its total, or becomes zeros if that is negative.
    """
    from scipy.optimize import isotonic_regression

    rows = noisy.reshape(-1, noisy.shape[-1])[:, ::-1]
    result = np.empty(rows.shape)
    for row, sums in zip(result, np.cumsum(rows, 1), strict=True):
        total = max(float(sums[-1]), 0.0)
        risen = isotonic_regression(sums).x.clip(0.0, total)
        risen[-1] = total
        row[:] = np.diff(risen, prepend=0.0)
    return result[:, ::-1].reshape(noisy.shape)


def bin_scores(num_bins: int) -> NDArray[np.float64]:
    """Return (B,) the score that each bin stands for: its midpoint."""
    return (np.arange(num_bins) + 0.5) / num_bins


def loss(counts: Histogram) -> NDArray[np.float64]:
    """Return the mean binary cross-entropy, in nats."""
    scores = bin_scores(counts.shape[-1])
    negatives, positives = _rows(counts)
    return _ratio(-(positives * np.log(scores) + negatives * np.log1p(-scores)).sum(-1), counts.sum((-1, -2)))


def normalised_entropy(counts: Histogram) -> NDArray[np.float64]:
    """Return the loss over that of a model that knows only the share of positives.

    Below 1 is better than that.
    """
    share = _ratio(_rows(counts)[1].sum(-1), counts.sum((-1, -2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -(share * np.log(share) + (1 - share) * np.log1p(-share))
    return _ratio(loss(counts), entropy)


def accuracy(counts: Histogram) -> NDArray[np.float64]:
    """Return the share of records on the right side of one half.

    With an odd number of bins, the one in the middle counts as above it.
    """
    middle = counts.shape[-1] // 2
    right = counts[..., 0, :middle].sum(-1) + counts[..., 1, middle:].sum(-1)
    return _ratio(right, counts.sum((-1, -2)))


def share_of_positives(counts: Histogram) -> NDArray[np.float64]:
    """Return the share of positives among all records."""
    return _ratio(_rows(counts)[1].sum(-1), counts.sum((-1, -2)))


def mean_over_rate(counts: Histogram) -> NDArray[np.float64]:
    """Return the mean score over the share of positives: 1 where predictions add up."""
    records = counts.sum(-2)
    return _ratio((records * bin_scores(counts.shape[-1])).sum(-1), _rows(counts)[1].sum(-1))


def roc_auc(counts: Histogram) -> NDArray[np.float64]:
    """Return the probability that a positive scores above a negative; a shared bin counts one half."""
    negatives, positives = _rows(counts)
    below = np.cumsum(negatives, -1) - negatives / 2
    return _ratio((positives * below).sum(-1), positives.sum(-1) * negatives.sum(-1))


def pr_auc(counts: Histogram) -> NDArray[np.float64]:
    """Return the average precision: over all positives, the mean precision at their bins."""
    positives = _rows(counts)[1]
    return _ratio((positives * np.nan_to_num(precision(counts))[..., :-1]).sum(-1), positives.sum(-1))


def false_positive_rate(counts: Histogram) -> NDArray[np.float64]:
    """Return (..., B + 1) the share of negatives at or above each bin's lower edge, then at or above 1."""
    return _at_or_above(_rows(counts)[0])


def true_positive_rate(counts: Histogram) -> NDArray[np.float64]:
    """Return (..., B + 1) the share of positives at or above each bin's lower edge, then 1: the recall."""
    return _at_or_above(_rows(counts)[1])


def precision(counts: Histogram) -> NDArray[np.float64]:
    """Return (..., B + 1) the share of positives among the records at or above each bin's lower edge.

    NaN where there is less than half a record.
    """
    negatives, positives = (_sums_from_above(row) for row in _rows(counts))
    return _ratio(positives, np.where(negatives + positives < 0.5, 0.0, negatives + positives))


def calibration_groups(counts: Histogram, most: int) -> NDArray[np.int64]:
    """Return (B,) the group of each bin.

    Groups of about equally many records, of whole bins, numbered without gaps.
    """
    records = np.maximum(counts.sum(0), 1e-9)
    middles = np.cumsum(records) - records / 2
    group = np.minimum((most * middles / records.sum()).astype(np.int64), most - 1)
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


def observe_share(groups: NDArray[np.int64]) -> Figure:
    """Return (..., G) the share of positives in each group."""

    def figure(counts: Histogram) -> NDArray[np.float64]:
        return _ratio(_by_group(counts[..., 1, :], groups), _by_group(counts.sum(-2), groups))

    return figure


def mean_score(groups: NDArray[np.int64]) -> Figure:
    """Return (..., G) the mean score in each group."""

    def figure(counts: Histogram) -> NDArray[np.float64]:
        records = counts.sum(-2)
        return _ratio(_by_group(records * bin_scores(counts.shape[-1]), groups), _by_group(records, groups))

    return figure


OF_LABELS: Final[Mapping[str, Figure]] = {
    "loss": loss,
    "normalised_entropy": normalised_entropy,
    "accuracy": accuracy,
    "roc_auc": roc_auc,
    "pr_auc": pr_auc,
    "positives": share_of_positives,
    "mean_over_rate": mean_over_rate,
}
"""What is read off a model of one output: positives are the records of label 1."""

OF_CHOICES: Final[Mapping[str, Figure]] = {"accuracy": share_of_positives, "confidence_roc_auc": roc_auc}
"""What is read off a model of several classes.

Positives are the records whose first choice is right, scores the confidence in it. How
likely the model held the true class where it was wrong is not in the histogram, so there is no loss."""


def _rows(counts: Histogram) -> tuple[Histogram, Histogram]:
    return counts[..., 0, :], counts[..., 1, :]


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide; NaN where the denominator is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


def _sums_from_above(row: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums from each bin upwards, and 0 at the end: (..., B) -> (..., B + 1)."""
    sums = np.cumsum(row[..., ::-1], -1)[..., ::-1]
    return np.concatenate([sums, np.zeros((*row.shape[:-1], 1))], -1)


def _at_or_above(row: NDArray[np.float64]) -> NDArray[np.float64]:
    return _ratio(_sums_from_above(row), row.sum(-1, keepdims=True))


def _by_group(row: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.add.reduceat(row, np.flatnonzero(np.diff(groups, prepend=-1)), -1)
