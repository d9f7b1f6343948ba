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

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

Numbers: TypeAlias = NDArray[np.float64]
Histogram: TypeAlias = NDArray[np.float64]


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


@frozen(eq=False)
class SmoothedCounts:
    """A histogram without negative counts, and the figures that are read off it.

    A figure is one number of each histogram, or an array of numbers of each. It is NaN where its denominator
    is zero.

    Attributes:
        counts: (..., 2, B) in records.
    """

    counts: Histogram

    def loss(self) -> Numbers:
        """Return the mean binary cross-entropy, in nats."""
        scores = bin_scores(self.counts.shape[-1])
        losses = -(self._positives * np.log(scores) + self._negatives * np.log1p(-scores))
        return _ratio(losses.sum(-1), self._total)

    def normalised_entropy(self) -> Numbers:
        """Return the loss over that of a model that knows only the share of positives.

        Below 1 is better than that.
        """
        share = self.share_of_positives()
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -(share * np.log(share) + (1 - share) * np.log1p(-share))
        return _ratio(self.loss(), entropy)

    def accuracy(self) -> Numbers:
        """Return the share of records on the right side of one half.

        With an odd number of bins, the one in the middle counts as above it.
        """
        middle = self.counts.shape[-1] // 2
        right = self._negatives[..., :middle].sum(-1) + self._positives[..., middle:].sum(-1)
        return _ratio(right, self._total)

    def share_of_positives(self) -> Numbers:
        """Return the share of positives among all records."""
        return _ratio(self._positives.sum(-1), self._total)

    def mean_over_rate(self) -> Numbers:
        """Return the mean score over the share of positives: 1 where predictions add up."""
        scores = bin_scores(self.counts.shape[-1])
        # Both means have all records below, which cancel.
        return _ratio((self._records * scores).sum(-1), self._positives.sum(-1))

    def roc_auc(self) -> Numbers:
        """Return the probability that a positive scores above a negative; a shared bin counts one half."""
        negatives, positives = self._negatives, self._positives
        below = np.cumsum(negatives, -1) - negatives / 2
        return _ratio((positives * below).sum(-1), positives.sum(-1) * negatives.sum(-1))

    def pr_auc(self) -> Numbers:
        """Return the average precision: over all positives, the mean precision at their bins."""
        positives = self._positives
        return _ratio((positives * np.nan_to_num(self.precision())[..., :-1]).sum(-1), positives.sum(-1))

    def false_positive_rate(self) -> Numbers:
        """Return (..., B + 1) the share of negatives at or above each bin's lower edge, the last one 1."""
        return _at_or_above(self._negatives)

    def true_positive_rate(self) -> Numbers:
        """Return (..., B + 1) the recall: the share of positives at or above each bin's lower edge."""
        return _at_or_above(self._positives)

    def precision(self) -> Numbers:
        """Return (..., B + 1) the share of positives among the records at or above each bin's lower edge.

        NaN where there is less than half a record.
        """
        negatives, positives = _sums_from_above(self._negatives), _sums_from_above(self._positives)
        return _ratio(positives, np.where(negatives + positives < 0.5, 0.0, negatives + positives))

    def calibration_groups(self, most: int) -> NDArray[np.int64]:
        """Return (B,) the group of each bin of a single histogram.

        Groups of about equally many records, of whole bins, numbered without gaps.
        """
        # An empty bin gets a trace of a record, or a histogram without any would divide by zero.
        records = np.maximum(self._records, 1e-9)
        middles = np.cumsum(records) - records / 2
        group = np.minimum((most * middles / records.sum()).astype(np.int64), most - 1)
        return np.unique(group, return_inverse=True)[1].astype(np.int64)

    def observed_share(self, groups: NDArray[np.int64]) -> Numbers:
        """Return (..., G) the share of positives in each of the `calibration_groups`."""
        return _ratio(_by_group(self._positives, groups), _by_group(self._records, groups))

    def mean_score(self, groups: NDArray[np.int64]) -> Numbers:
        """Return (..., G) the mean score in each of the `calibration_groups`."""
        scores = bin_scores(self.counts.shape[-1])
        return _ratio(_by_group(self._records * scores, groups), _by_group(self._records, groups))

    @property
    def _negatives(self) -> Numbers:
        return self.counts[..., 0, :]

    @property
    def _positives(self) -> Numbers:
        return self.counts[..., 1, :]

    @property
    def _records(self) -> Numbers:
        return np.asarray(self.counts.sum(-2))

    @property
    def _total(self) -> Numbers:
        return np.asarray(self.counts.sum((-1, -2)))


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """Divide; NaN where the denominator is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


def _sums_from_above(row: Numbers) -> Numbers:
    """Return sums from each bin upwards, and 0 at the end: (..., B) -> (..., B + 1)."""
    sums = np.cumsum(row[..., ::-1], -1)[..., ::-1]
    return np.concatenate([sums, np.zeros((*row.shape[:-1], 1))], -1)


def _at_or_above(row: Numbers) -> Numbers:
    return _ratio(_sums_from_above(row), row.sum(-1, keepdims=True))


def _by_group(row: Numbers, groups: NDArray[np.int64]) -> Numbers:
    # The bins of a group lie side by side, so a sum begins wherever the number of the group changes.
    return np.add.reduceat(row, np.flatnonzero(np.diff(groups, prepend=-1)), -1)
