"""The bin of each output and the first choice of each record, in steps that no output changes.

numpy's own search begins where the last one ended, and its `argmax` ends at the first NaN.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real

Integers = NDArray[np.int64]


def count_edges_up_to(values: Real, edges: Real) -> Integers:
    """Return how many ascending edges are at or below each value (n,); all of them for a NaN."""
    counts: Integers = np.empty(len(values), np.int64)
    _count_edges_up_to(values, edges, 1 << len(edges).bit_length() >> 1, counts)
    return counts


def first_largest(outputs: Real) -> Integers:
    """Return the place of each record's (n, classes) first largest output, or of its first NaN."""
    places: Integers = np.empty(len(outputs), np.int64)
    _first_largest(outputs, places)
    return places


@kernel
def _count_edges_up_to(values: Real, edges: Real, longest: int, counts: Integers) -> None:
    """Run the loop of `count_edges_up_to` with halving steps, from the largest power of two edges."""
    for r in range(len(values)):
        count, step = 0, longest
        while step > 0:
            further = count + step
            # As many steps for every value, and no edge beyond the last is read: too far counts as below.
            is_below = values[r] < edges[min(further, len(edges)) - 1]
            count = count if (further > len(edges)) | is_below else further
            step >>= 1
        counts[r] = count


@kernel
def _first_largest(outputs: Real, places: Integers) -> None:
    """Run the loop of `first_largest`."""
    for r in range(outputs.shape[0]):
        best, place = outputs[r, 0], 0
        for c in range(1, outputs.shape[1]):
            value = outputs[r, c]
            is_better = (value > best) | ((value != value) & (best == best))  # noqa: PLR0124  # NaN
            best = value if is_better else best
            place = c if is_better else place
        places[r] = place
