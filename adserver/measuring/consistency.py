"""Roll-ups that add up.

The least-squares estimates of all cells at once, given that the parts of a cell add to it.

The cells of one query form a tree: under each cell that is not a rest lie the cells of the next level, with a
rest among them. All were noised alike, so the best linear unbiased estimate weighs a cell's own number
against the sum of its parts by their variances, from the leaves up, and then hands what is left over back to
the parts, from the root down. It is post-processing: it costs no privacy.

Source: M. Hay, V. Rastogi, G. Miklau, D. Suciu, "Boosting the Accuracy of Differentially Private Histograms
Through Consistency", 2010; here for any fan-out, and with leaves at every level.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

Numbers = NDArray[np.float64]


@frozen
class LevelEstimate:
    """The cells of one level.

    Attributes:
        values: (cells, columns).
        variances: (cells,) of each value, in multiples of the variance of the noise in a single cell.
    """

    values: Numbers
    variances: Numbers


# A level after the way up: values (parents, width, columns), the rest last; variances (width,).
_Merged: TypeAlias = LevelEstimate


def consistent(levels: Sequence[Numbers], widths: Sequence[int]) -> tuple[LevelEstimate, ...]:
    """Return the estimates of all levels, coarsest first, adjusted so that parts add to the whole.

    Args:
        levels: (cells, columns) each, independent noise of one variance in every cell.
        widths: How many cells of each level lie under one cell above, the rest included; 1 for level 0, which
            has no rest.
    """
    merged = [
        _Merged(values=_by_parent(values, width), variances=np.ones(width))
        for values, width in zip(levels, widths, strict=True)
    ]
    # Up and down the tree once: the same numbers as a least-squares solve over all cells, in linear time.
    for above in range(len(levels) - 2, -1, -1):
        merged[above] = _merge_parts(merged[above], merged[above + 1])
    estimates = merged[:1]
    for parts in merged[1:]:
        estimates.append(_hand_down(estimates[-1], parts))
    return tuple(_flat(estimate) for estimate in estimates)


def _by_parent(values: Numbers, width: int) -> Numbers:
    return values.reshape(-1, width, values.shape[1])


def _num_wholes(width: int) -> int:
    """Return how many cells under one cell have parts: all but the one for the rest."""
    return max(1, width - 1)


def _merge_parts(whole: _Merged, parts: _Merged) -> _Merged:
    """Merge each whole's own number with the sum of its parts, weighted by variance."""
    wholes = _num_wholes(len(whole.variances))
    variance = parts.variances.sum()
    weight = variance / (whole.variances[:wholes] + variance)
    # The rest of each cell has no parts: its last column stays as it was noised.
    values, variances = whole.values.copy(), whole.variances.copy()
    sums = parts.values.sum(axis=1).reshape(-1, wholes, values.shape[2])
    values[:, :wholes] = weight[:, None] * values[:, :wholes] + (1 - weight[:, None]) * sums
    variances[:wholes] *= weight
    return _Merged(values=values, variances=variances)


def _hand_down(whole: LevelEstimate, parts: _Merged) -> LevelEstimate:
    """Distribute what the parts lack of their whole among them, in proportion to their variances."""
    wholes = _num_wholes(whole.values.shape[1])
    share = parts.variances / parts.variances.sum()
    lacking = whole.values[:, :wholes].reshape(-1, parts.values.shape[2]) - parts.values.sum(axis=1)
    return LevelEstimate(
        values=parts.values + share[None, :, None] * lacking[:, None, :],
        # Of any whole: those of one level have parts alike, and so one variance.
        variances=parts.variances * (1 - share) + share**2 * whole.variances[0],
    )


def _flat(estimate: LevelEstimate) -> LevelEstimate:
    """Reshape (parents, width, columns) to (cells, columns), with a variance for each cell."""
    parents, width, columns = estimate.values.shape
    return LevelEstimate(
        values=estimate.values.reshape(parents * width, columns),
        variances=np.tile(estimate.variances, parents),
    )
