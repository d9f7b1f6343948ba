"""Where a sliding window looks.

The places of an image that each output of a convolution or a pooling reads.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

PADDING = -1


@frozen
class Windows:
    """A window sliding over one channel.

    Attributes:
        places: int32 (outputs, window): for each output the flat place in the channel of each of its inputs,
            PADDING outside.
        space: The channel's shape.
        result: The output's shape.
    """

    places: NDArray[np.int32]
    space: tuple[int, ...]
    result: tuple[int, ...]


def positions(
    space: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """Return the shape of what `slide` gives, without making it."""
    return tuple(
        (size + pads[axis] + pads[len(space) + axis] - (kernel[axis] - 1) * dilations[axis] - 1)
        // strides[axis]
        + 1
        for axis, size in enumerate(space)
    )


def slide(
    space: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Windows:
    """Return the windows of ONNX's Conv and pools.

    Pads lists all that goes before each axis, then all that goes after.
    """
    result = positions(space, kernel, strides=strides, pads=pads, dilations=dilations)
    coordinates = []
    for axis, count in enumerate(result):
        coordinates.append(
            np.arange(count)[:, None] * strides[axis] + np.arange(kernel[axis]) * dilations[axis] - pads[axis]
        )
    places: NDArray[Any] = np.zeros((1, 1), np.int64)
    inside: NDArray[Any] = np.ones((1, 1), bool)
    for axis, size in enumerate(space):
        here = coordinates[axis]
        # Outside counts as place 0 until the end, so that the places of several axes add up.
        places = _outer(places * size, np.where((here >= 0) & (here < size), here, 0), np.add)
        inside = _outer(inside, (here >= 0) & (here < size), np.logical_and)
    return Windows(
        places=np.where(inside, places, PADDING).astype(np.int32), space=tuple(space), result=result
    )


def _outer(left: NDArray[Any], right: NDArray[Any], join: np.ufunc) -> NDArray[Any]:
    """Join each pair: (a, k) and (b, l) to (a * b, k * l)."""
    joined: NDArray[Any] = join(left[:, None, :, None], right[None, :, None, :])
    return joined.reshape(len(left) * len(right), -1)


def reduce_windows(shape: Sequence[int], axes: Sequence[int]) -> Windows:
    """Return, for each entry that is left when axes are reduced, the window it is reduced from.

    The whole value is one channel.
    """
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    numbers = np.arange(prod(shape), dtype=np.int32).reshape(shape).transpose(*kept, *axes)
    places = numbers.reshape(prod(shape[axis] for axis in kept), -1)
    return Windows(
        places=np.ascontiguousarray(places), space=tuple(shape), result=tuple(shape[axis] for axis in kept)
    )
