"""Lengths of vectors: in floats, on the thread that asks for them, and in whole numbers, exactly."""

import math

import numpy as np
from numpy.typing import NDArray


def l2_norm(vector: NDArray[np.float64]) -> float:
    """Return the L2 norm of a flat vector.

    `numpy.linalg.norm` asks BLAS, whose threads then wait in a loop for more to do: 18 ms of processor time
    for 25,000 numbers on two cores, where this takes 0.4.

    >>> l2_norm(np.array([3.0, 4.0]))
    5.0
    """
    return math.sqrt(float(np.square(vector).sum()))


def root_up(square: int) -> int:
    """Return the square root of a non-negative integer, rounded up: the same for every party."""
    return math.isqrt(square - 1) + 1 if square else 0
