"""Loops as they were, whose work depends on what records hold: `make audit` and tests must catch them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels import rows
from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.layers import embedding


@kernel
def gather_walking(deltas: Any, indices: NDArray[np.int32], _first: Any, gathered: Any) -> None:
    """`embedding._gather_equal`: it walks to the first place with the same row."""
    places = indices.shape[1]
    width = deltas.shape[2] // places
    for s in range(deltas.shape[0]):
        for r in range(deltas.shape[1]):
            for place in range(places):
                home = 0
                while indices[r, home] != indices[r, place]:
                    home += 1
                for j in range(width):
                    gathered[s, r, home * width + j] += deltas[s, r, place * width + j]


@kernel
def quantise_leaving(  # noqa: PLR0917  # compiled functions take their arrays by position
    values: Any, bits: NDArray[np.int64], squares: bool, q: Any, exponent: Any, norm: Any
) -> None:
    """`rows._quantise`: it leaves early where a row is zero."""
    for r in range(values.shape[0]):
        top = np.int64(0)
        for j in range(values.shape[1]):
            top = max(top, bits[r, j] & rows._MAGNITUDE)
        if top == 0 or top >= rows._INFINITY:
            q[r, :] = 0
            exponent[r], norm[r] = 0, 0
            continue
        e = min(max(int(15 + 1022 - (top >> 52)), rows.MIN_ROW_EXPONENT), rows.MAX_ROW_EXPONENT)
        scale, total = rows.power(e), np.int64(0)
        for j in range(values.shape[1]):
            value = np.int32((min(max(values[r, j] * scale, -32767.0), 32767.0) + rows._ROUND) - rows._ROUND)
            q[r, j] = value
            total += np.int64(value * value) if squares else np.int64(abs(value))
        exponent[r], norm[r] = e, total


@contextmanager
def in_place() -> Iterator[None]:
    """Helpers of this process with these loops."""
    with (
        patch.object(embedding, "_gather_equal", gather_walking),
        patch.object(rows, "_quantise", quantise_leaving),
    ):
        yield
