"""Grey images as histograms of oriented gradients (HOG), in whole numbers below 2^31 only.

Of an image of bytes, black beyond its border:

    gradient      the right pixel less the left, and the lower less the upper
    direction     the octant of the gradient, by signs and by which of both differences is longer
    length        the whole root of the sum of both squares
    cell          4 x 4 pixels; its 8 histogram entries add the lengths in the 8 x 8 pixels around it, each
                  times 1, 3, 5, 7, 7, 5, 3, 1 in either axis, and divide by 64
    norm          64 and the whole root of the squared entries of the cell and the eight around it
    byte          the whole root of 90,000 entries over the norm, at most 255

Divisions round down. Bytes are in the order rows of cells, cells, octants. Any language can do the same bit
for bit (tests/vectors/encoder holds vectors). Source: Dalal and Triggs, 2005; the root is RootSIFT's.

>>> hog(np.full((1, 8, 8), 200, np.uint8))[0, :8].tolist()
[171, 94, 171, 0, 0, 0, 0, 0]
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

CELL: Final = 4
"""Pixels of a cell in either axis."""
OCTANTS: Final = 8
MAX_SIDE: Final = 256
_TENT: Final = (1, 3, 5, 7, 7, 5, 3, 1)
_TENT_DIVISOR: Final = 64
_LEAST_NORM: Final = 64
_SQUARED_TOP: Final = 90_000
_TOP: Final = 255
# Pixels whose histograms are in memory together
_AT_ONCE: Final = 1 << 20


def hog_bytes(height: int, width: int) -> int:
    """Return how many bytes an image of this size becomes."""
    return (height // CELL) * (width // CELL) * OCTANTS


def hog(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the histograms of images (n, height, width), u8 (n, `hog_bytes`).

    Height and width are multiples of `CELL`, at most `MAX_SIDE`.
    """
    count, height, width = images.shape
    step = max(1, _AT_ONCE // (height * width))
    parts = [_hog(images[start : start + step].astype(np.int64)) for start in range(0, count, step)]
    return np.concatenate(parts) if parts else np.empty((0, hog_bytes(height, width)), np.uint8)


def _hog(pixels: NDArray[np.int64]) -> NDArray[np.uint8]:
    wide = np.pad(pixels, ((0, 0), (1, 1), (1, 1)))
    right = wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]
    down = wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1]
    length, octant = _root(right * right + down * down), _octant(right, down)
    entries = np.stack([_cells(np.where(octant == one, length, 0)) for one in range(OCTANTS)], axis=-1)
    energy = np.pad((entries * entries).sum(axis=-1), ((0, 0), (1, 1), (1, 1)))
    around = _triples(_triples(energy).transpose(0, 2, 1)).transpose(0, 2, 1)
    # The least keeps the noise of a flat region from being blown up to the size of an edge.
    norm = _LEAST_NORM + _root(around)
    found = np.minimum(_root(_SQUARED_TOP * entries // norm[..., None]), _TOP)
    return found.astype(np.uint8).reshape(len(pixels), -1)


def _octant(right: NDArray[np.int64], down: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the octant of each gradient, counted from the right by way of down, (n, height, width)."""
    # Turned by half a turn and then by a quarter, every gradient lies in the first quarter, where one
    # comparison tells its octant: no angle is computed, and none is rounded.
    half = np.where((down < 0) | ((down == 0) & (right < 0)), 4, 0)
    ahead, aside = np.where(half == 4, -right, right), np.where(half == 4, -down, down)
    quarter = np.where(ahead > 0, 0, 2)
    first, second = np.where(quarter == 2, aside, ahead), np.where(quarter == 2, -ahead, aside)
    return np.asarray(half + quarter + (second >= first), np.int64)


def _cells(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each cell's weighted sum of what lies around it, (n, rows of cells, cells)."""
    edge = CELL // 2
    wide = np.pad(lengths, ((0, 0), (edge, edge), (edge, edge)))
    height, width = lengths.shape[1:]
    tent = np.array(_TENT, np.int64)
    rows = np.stack([wide[:, at : at + height : CELL] for at in range(len(_TENT))], axis=-1) @ tent
    both = np.stack([rows[:, :, at : at + width : CELL] for at in range(len(_TENT))], axis=-1) @ tent
    return np.asarray(both // _TENT_DIVISOR, np.int64)


def _triples(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of three neighbours in rows of the first axis of an image."""
    return values[:, :-2] + values[:, 1:-1] + values[:, 2:]


def _root(squares: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the whole root of each, rounded down; whichever way a machine's float64 root rounds."""
    near = np.sqrt(squares.astype(np.float64)).astype(np.int64)
    near -= near * near > squares
    return near + ((near + 1) * (near + 1) <= squares)
