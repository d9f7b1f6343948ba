"""Idx files of unsigned bytes, packed by gzip or not, as MNIST's images and labels come: exact lengths only.

Source: LeCun, Bottou, Bengio and Haffner, 1998.
"""

import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask

TRAIN: Final = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST: Final = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MAX_IDX_BYTES: Final = 64 << 20
_UNSIGNED_BYTE: Final = 0x08


class ImagesAndLabels(NamedTuple):
    """Shapes: images (n, height, width), labels (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def idx_pair(names: tuple[str, str], read: Callable[[str], bytes]) -> ImagesAndLabels:
    """Read the images and labels of two files by name; `read` returns the unpacked content of a name.

    Raises:
        InvalidTask: they are no idx files, or do not hold as many images as labels.
    """
    images, labels = (parse_idx(read(name), size, name) for name, size in zip(names, (3, 1), strict=True))
    if len(images) != len(labels):
        raise InvalidTask(f"{names[0]} has {len(images)} images, {names[1]} {len(labels)} labels")
    return ImagesAndLabels(images, labels)


def parse_idx(content: bytes, dimensions: int, what: str) -> NDArray[np.uint8]:
    """Parse an idx file of unsigned bytes as an array of that many dimensions.

    Raises:
        InvalidTask: another magic number, or a length that is not the header's.
    """
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        raise InvalidTask(f"{what} is not an idx file of bytes in {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))
    count = 1
    for size in shape:  # Python integers: a hostile header cannot wrap around
        count *= size
    if len(content) != header + count:
        raise InvalidTask(f"{what} has {len(content)} bytes; its header says {header + count}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def unpack(packed: bytes, what: str) -> bytes:
    """Decompress a gzip file; refuse it beyond 64 MiB before decompressing further.

    Raises:
        InvalidTask: not gzip, damaged, or too long.
    """
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        # A byte beyond the limit shows that there is more, whatever a hostile file unpacks to.
        content = unpacker.decompress(packed, MAX_IDX_BYTES + 1)
    except zlib.error:
        raise InvalidTask(f"{what} is not a sound gzip file") from None
    if len(content) > MAX_IDX_BYTES:
        raise InvalidTask(f"{what} unpacks to more than {MAX_IDX_BYTES} bytes")
    if not unpacker.eof:
        raise InvalidTask(f"{what} ends too early")
    return content
