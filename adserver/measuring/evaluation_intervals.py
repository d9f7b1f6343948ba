"""Intervals of what a noisy histogram of scores says of a model.

What they cover is a figure of the population that the records were drawn from, of scores in these bins: they
hold both the sampling of records and both helpers' noise. A noisy histogram is (..., 2, B), as in
`adserver.measuring.evaluation_metrics`. A cell's variance is that of the noise, which is known exactly, and
of a Poisson count, whose mean is the smoothed count.

Everything is computed on the noisy histogram itself, which is right on average. The smoothed one, which has
moved, only says how far to trust it.

- *Shares of records* (accuracy, rates, precision, calibration) are ratios of sums. If the share is r, the
  part less r times the whole is 0 on average, with variance r (1 - r) whole + noise: `Ratio.interval`.
  Without noise that is the interval of E. B. Wilson, 1927.
- *Means* (loss, mean scores) are ratios of weighted sums.
- *ROC AUC* is a bilinear form of both rows over the product of their totals. Noise and sampling of the rows
  are independent, so it is right on average, and its variance is a sum of three terms, exactly.
- *PR AUC* is not linear in anything. It is expanded to first order at the smoothed histogram. What that
  leaves out, and what the highest bins may hide that have fewer records than noise, is added to the interval;
  where it is more than half a standard error, no interval is given.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.measuring.evaluation_metrics import Histogram, bin_scores
from adserver.measuring.intervals import Interval, Numbers, Ratio, divide, half_width, reach
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism

# More than 99 %, so that with what the approximations miss intervals still cover with 99 %.
_AIM: Final = 0.992
# The most standard errors that an expansion may leave out.
_MOST_LEFT_OUT: Final = 0.5
_GROUP_CLEAR: Final = 6.0
# Bins count as resolved down from where the records above have this many standard deviations of noise.
_RESOLVED: Final = 4.0


@frozen
class NoisyCounts:
    """A noisy histogram, and what is known of its noise.

    Attributes:
        noisy: (..., 2, B) in records.
        smoothed: The same without negative counts.
        mechanism: Of the noise.
        noise_variance: Of both helpers' noise in one cell, in records squared.
    """

    noisy: Histogram
    smoothed: Histogram
    mechanism: Mechanism
    noise_variance: float

    @property
    def variances(self) -> Histogram:
        """Of each cell: the noise's, and a Poisson count's."""
        return self.smoothed + self.noise_variance

    def accuracy(self) -> Interval:
        """Return the interval of the share of records on the right side of one half."""
        bins = self.noisy.shape[-1]
        right = np.arange(bins) < bins // 2
        return _share(self, _sum_of(self, np.stack([right, ~right])), _sum_of(self, np.ones((2, bins))))

    def share_of_positives(self) -> Interval:
        """Return the interval of the share of positives among all records."""
        every = np.ones(self.noisy.shape[-2:])
        return _share(self, _sum_of(self, every * [[0], [1]]), _sum_of(self, every))

    def rate_at_or_above(self, row: int) -> Interval:
        """Return (..., B + 1) the intervals of the share of a row's records above each bin's lower edge."""
        above = _sums_from_above(self, [row])
        whole = _Sum(noisy=above.noisy[..., :1], smoothed=above.smoothed[..., :1], cells=above.cells[:1])
        return _share(self, above, whole)

    def precision(self) -> Interval:
        """Return (..., B + 1) the intervals of the share of positives at or above each bin's lower edge."""
        return _share(self, _sums_from_above(self, [1]), _sums_from_above(self, [0, 1]))

    def observed_share(self, groups: Numbers) -> Interval:
        """Return (..., G) the intervals of the share of positives by group.

        Args:
            groups: (..., G, B) 1 where a bin is in a group, otherwise 0.
        """
        positives = groups[..., None, :] * np.array([[0.0], [1.0]])
        both = np.broadcast_to(groups[..., None, :], positives.shape)
        return _share(self, _sum_of(self, positives), _sum_of(self, both))

    def num_groups(self, most: int) -> NDArray[np.int64]:
        """Return into how many groups of equally many records and bins the histogram can be divided.

        Of fewer, so that each still has `_GROUP_CLEAR` standard deviations of noise; at least one.
        """
        records, cells = self.smoothed.sum((-1, -2)), 2 * self.noisy.shape[-1]
        # Without noise every group is clear.
        if self.noise_variance == 0:
            return np.full(records.shape, most)
        fitting = (records / _GROUP_CLEAR) ** 2 / (self.noise_variance * cells)
        return np.asarray(np.clip(fitting, 1, most), np.int64)

    def mean_score(self, groups: Numbers) -> Interval:
        """Return (..., G) the intervals of the mean score by group; `groups` as in `observed_share`."""
        noisy, variances = self.noisy.sum(-2), self.variances.sum(-2)
        scores = bin_scores(noisy.shape[-1])
        return _interval(
            self,
            Ratio(
                above=_by_group(noisy * scores, groups),
                below=_by_group(noisy, groups),
                v0=_by_group(variances * scores**2, groups),
                v1=_by_group(variances * scores, groups),
                v2=_by_group(variances, groups),
                deviation_below=np.sqrt(_by_group(variances, groups)),
            ),
        )

    def loss(self) -> Interval:
        """Return the interval of the mean binary cross-entropy."""
        ones = np.ones(self.noisy.shape[-2:])
        return _interval(self, _weigh(self, _losses(self), ones, self.noisy.sum((-1, -2))))

    def normalised_entropy(self) -> Interval:
        """Return the interval of the loss over that of a model that knows only the share of positives.

        Its denominator is expanded to first order at the noisy totals, and its second order's mean taken off.
        """
        totals = self.noisy.sum(-1)
        whole = totals.sum(-1, keepdims=True)
        is_known = (totals > 0).all(-1)
        # Stand-ins that have a logarithm; their results are dropped below.
        at = np.where(is_known[..., None], totals, 1.0)
        all_of_it = np.where(is_known[..., None], whole, 2.0)
        slopes = -np.log(at / all_of_it)
        spread = self.variances.sum(-1)
        entropy = (at * slopes).sum(-1) + (spread / at).sum(-1) / 2 - spread.sum(-1) / all_of_it[..., 0] / 2
        weights = np.broadcast_to(slopes[..., None], self.noisy.shape)
        below = np.where(is_known, entropy, np.nan)
        return _interval(self, _weigh(self, _losses(self), weights, below), _clearness(self))

    def mean_over_rate(self) -> Interval:
        """Return the interval of the mean score over the share of positives."""
        ones = np.ones(self.noisy.shape[-2:])
        scores, positives = ones * bin_scores(self.noisy.shape[-1]), ones * [[0.0], [1.0]]
        total = self.noisy[..., 1, :].sum(-1)
        return _interval(self, _weigh(self, scores, positives, total))

    def roc_auc(self) -> Interval:
        """Return the interval of the probability that a positive scores above a negative."""
        negatives, positives = self.noisy[..., 0, :], self.noisy[..., 1, :]
        low, high = self.variances[..., 0, :], self.variances[..., 1, :]
        below, above = _below(negatives), _above(positives)
        both = negatives.sum(-1, keepdims=True), positives.sum(-1, keepdims=True)
        # The first two terms each hold the third once too often, for the noisy sums in them are squared.
        halves = np.cumsum(low, -1) - low + low / 4
        ratio = Ratio(
            above=(positives * below).sum(-1),
            below=(both[0] * both[1])[..., 0],
            v0=(high * below**2).sum(-1) + (low * above**2).sum(-1) - (high * halves).sum(-1),
            v1=(high * below * both[0]).sum(-1)
            + (low * above * both[1]).sum(-1)
            - (high * _below(low)).sum(-1),
            v2=(high * both[0] ** 2).sum(-1) + (low * both[1] ** 2).sum(-1) - high.sum(-1) * low.sum(-1),
            # Never read: `_interval` is given the clearness of both rows instead.
            deviation_below=np.array(np.nan),
        )
        value = ratio.value[..., None]
        # To first order a cell of one row moves A - r D by what the other row has beyond it, less r of all.
        fourth = ((below - value * both[0]) ** 4).sum(-1) + ((above - value * both[1]) ** 4).sum(-1)
        return _clip(_interval(self, ratio, _clearness(self), fourth=fourth), 1.0)

    def pr_auc(self) -> Interval:
        """Return the interval of the average precision."""
        smoothed, variances = self.smoothed, self.variances
        positives, records = smoothed[..., 1, :], _from_above(smoothed.sum(-2))[..., :-1]
        found = _from_above(positives)[..., :-1]
        is_any = records >= 0.5  # as `SmoothedCounts.precision` has it
        at = np.where(is_any, records, 1.0)
        share = np.where(is_any, found / at, 0.0)
        up_to = np.cumsum(np.where(is_any, positives / at, 0.0), -1)
        lost = np.cumsum(np.where(is_any, positives * found / at**2, 0.0), -1)
        # How the sum of positives times precision changes with a negative of each bin, and with a positive.
        slopes = np.stack([-lost, share + up_to - lost], -2)
        below = self.noisy[..., 1, :].sum(-1)
        ratio = Ratio(
            above=(positives * share).sum(-1) + (slopes * (self.noisy - smoothed)).sum((-1, -2)),
            below=below,
            v0=(slopes**2 * variances).sum((-1, -2)),
            v1=(slopes[..., 1, :] * variances[..., 1, :]).sum(-1),
            v2=variances[..., 1, :].sum(-1),
            # Never read: `_interval` is given the clearness of both rows instead.
            deviation_below=np.array(np.nan),
        )
        value = np.nan_to_num(ratio.value)
        left_out = divide(_left_out(self, records, found), np.sqrt(ratio.variance_at(value)))
        weights = slopes - value[..., None, None] * np.array([[0.0], [1.0]])
        interval = _clip(
            _interval(
                self, ratio, _clearness(self), fourth=(weights**4).sum((-1, -2)), more=np.nan_to_num(left_out)
            ),
            1.0,
        )
        is_known = np.nan_to_num(left_out) <= _MOST_LEFT_OUT
        return replace(
            interval,
            low=np.where(is_known, interval.low, np.nan),
            high=np.where(is_known, interval.high, np.nan),
        )


@frozen
class _Sum:
    """Noisy numbers of records, each the sum of some cells.

    Attributes:
        noisy: The numbers.
        smoothed: The same of the smoothed histogram.
        cells: How many cells are in each.
    """

    noisy: Numbers
    smoothed: Numbers
    cells: Numbers


def _left_out(counts: NoisyCounts, records: Numbers, found: Numbers) -> Numbers:
    """Return what the expansion of PR AUC may leave out, in positives.

    Of the resolved bins, the deviation of the second order's products and the size of its mean. Above them,
    as many positives as there may be times how much their precision may differ.
    """
    positives, variances = counts.smoothed[..., 1, :], counts.variances
    bins = positives.shape[-1]
    noise = np.sqrt(counts.noise_variance * 2 * np.arange(bins, 0, -1))
    is_enough = (records >= _RESOLVED * noise) & (records > 0)
    last = np.where(is_enough.any(-1), bins - 1 - np.argmax(is_enough[..., ::-1], -1), 0)[..., None]
    is_resolved = np.arange(bins) <= last
    at = np.where(records > 0, records, 1.0)
    share = found / at
    of_negatives, of_positives = (_from_above(variances[..., row, :])[..., :-1] for row in (0, 1))
    spread = (1 - share) ** 2 * of_positives + share**2 * of_negatives
    products = np.where(is_resolved, variances[..., 1, :] * spread / at**2, 0.0).sum(-1)
    means = np.where(
        is_resolved, positives / at**2 * np.sqrt((of_negatives + of_positives) * spread), 0.0
    ).sum(-1)
    hidden = np.maximum(found, np.sqrt(of_positives))
    next_one = np.minimum(last + 1, bins - 1)
    unresolved = np.where(
        last == bins - 1,
        0.0,
        np.take_along_axis(hidden, next_one, -1) * (1 - np.take_along_axis(share, last, -1)),
    )[..., 0]
    return np.asarray(np.sqrt(products) + means + (unresolved if counts.noise_variance else 0.0))


def _sum_of(counts: NoisyCounts, cells: NDArray[np.generic]) -> _Sum:
    """Return the sums over cells: (..., 2, B), or of several sums at once (..., G, 2, B)."""
    weights = np.asarray(cells, np.float64)
    several = weights.ndim > 2
    noisy, smoothed = (one[..., None, :, :] if several else one for one in (counts.noisy, counts.smoothed))
    return _Sum(
        noisy=(noisy * weights).sum((-1, -2)),
        smoothed=(smoothed * weights).sum((-1, -2)),
        cells=np.asarray(weights.sum((-1, -2))),
    )


def _sums_from_above(counts: NoisyCounts, rows: Sequence[int]) -> _Sum:
    """Return (..., B + 1) the sums of some rows from each bin upwards, the last one of nothing."""
    bins = counts.noisy.shape[-1]
    return _Sum(
        noisy=_from_above(counts.noisy[..., rows, :].sum(-2)),
        smoothed=_from_above(counts.smoothed[..., rows, :].sum(-2)),
        cells=len(rows) * np.arange(bins, -1.0, -1.0),
    )


def _share(counts: NoisyCounts, part: _Sum, whole: _Sum) -> Interval:
    """Return the interval of the share that some cells have of others that hold them."""
    noise = counts.noise_variance
    # With these numbers the variance at r is whole r (1 - r), of the sampling, and that of the noise.
    ratio = Ratio(
        above=part.noisy,
        below=whole.noisy,
        v0=noise * part.cells,
        v1=noise * part.cells - whole.smoothed / 2,
        v2=noise * whole.cells - whole.smoothed,
        deviation_below=np.sqrt(whole.smoothed + noise * whole.cells),
    )
    value = np.clip(np.nan_to_num(ratio.value), 0.0, 1.0)
    fourth = part.cells * (1 - value) ** 4 + (whole.cells - part.cells) * value**4
    return _clip(_interval(counts, ratio, fourth=fourth), 1.0)


def _weigh(counts: NoisyCounts, above: Numbers, below: Numbers, total: Numbers) -> Ratio:
    """Return the ratio of a weighted sum of the cells to a number whose weights are `below`.

    Counts of few records are skewed, which moves the numerator as P. Hall, "On the Removal of Skewness by
    Transformation", 1992, has it. And where few records bear most of the variance, fewer may have been drawn
    than usual: it is increased by that of some more of them, or of a class that was hardly drawn at all.
    """
    variances = counts.variances
    v2 = (below**2 * variances).sum((-1, -2))
    sums = Ratio(
        above=(above * counts.noisy).sum((-1, -2)),
        below=total,
        v0=(above**2 * variances).sum((-1, -2)),
        v1=(above * below * variances).sum((-1, -2)),
        v2=v2,
        deviation_below=np.sqrt(v2),
    )
    value = np.nan_to_num(sums.value)
    weights = above - value[..., None, None] * below
    # The second, third and fourth cumulant of a Poisson count are all its mean.
    second, third, fourth = ((weights**power * counts.smoothed).sum((-1, -2)) for power in (2, 3, 4))
    skew = np.nan_to_num(divide(third, sums.variance_at(value)))
    records = counts.smoothed.sum(-2, keepdims=True)
    of_either = divide((weights**2 * records).sum(-1), records.sum(-1)).max(-1)
    one_more = np.fmax(np.nan_to_num(divide(fourth, second)), np.nan_to_num(of_either))
    reached = half_width(Mechanism.GAUSSIAN, _AIM)
    return replace(
        sums, above=sums.above + (2 * reached**2 + 1) / 6 * skew, v0=sums.v0 + reached**2 / 3 * one_more
    )


def _interval(
    counts: NoisyCounts,
    ratio: Ratio,
    clearness: Numbers | None = None,
    *,
    fourth: Numbers | float = 0.0,
    more: Numbers | float = 0.0,
) -> Interval:
    """Return a ratio's interval.

    Args:
        counts: Of the mechanism and its noise.
        ratio: The ratio.
        clearness: How many standard deviations its denominator has, if that is not its own.
        fourth: The sum of the fourth powers of the cells' weights.
        more: Standard errors to add.
    """
    variance = ratio.variance_at(np.nan_to_num(ratio.value))
    concentration = np.nan_to_num(divide(counts.noise_variance**2 * np.asarray(fourth), variance**2))
    # `Ratio.interval` judges a denominator by its deviation, so another clearness is given to it as one.
    if clearness is not None:
        ratio = replace(ratio, deviation_below=divide(ratio.below, clearness))
    return _clip(ratio.interval(reach(counts.mechanism, concentration, _AIM) + more), np.inf)


def _clip(interval: Interval, most: float) -> Interval:
    return replace(interval, low=np.clip(interval.low, 0.0, most), high=np.clip(interval.high, 0.0, most))


def _clearness(counts: NoisyCounts) -> Numbers:
    """Return how many standard deviations the smaller of both rows' totals is."""
    totals = counts.noisy.sum(-1)
    deviations = np.sqrt(counts.variances.sum(-1))
    # Above 0, because the interval's reach is divided by it.
    clearness: Numbers = np.maximum(np.nan_to_num(divide(totals, deviations)), 1e-9).min(-1)
    return clearness


def _losses(counts: NoisyCounts) -> Numbers:
    """Return (2, B) the loss of a record in each cell."""
    scores = bin_scores(counts.noisy.shape[-1])
    return np.stack([-np.log1p(-scores), -np.log(scores)])


def _from_above(row: Numbers) -> Numbers:
    """Return sums from each bin upwards, and 0 at the end: (..., B) -> (..., B + 1)."""
    sums = np.cumsum(row[..., ::-1], -1)[..., ::-1]
    return np.concatenate([sums, np.zeros((*row.shape[:-1], 1))], -1)


def _below(row: Numbers) -> Numbers:
    """Return for each bin what lies below it, and half of itself."""
    return np.asarray(np.cumsum(row, -1) - row / 2)


def _above(row: Numbers) -> Numbers:
    """Return for each bin what lies above it, and half of itself."""
    return np.asarray(np.cumsum(row[..., ::-1], -1)[..., ::-1] - row / 2)


def _by_group(row: Numbers, groups: Numbers) -> Numbers:
    """Return sums by group: (..., B), (..., G, B) -> (..., G)."""
    return np.asarray((row[..., None, :] * groups).sum(-1))
