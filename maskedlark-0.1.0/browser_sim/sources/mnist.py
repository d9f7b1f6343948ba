"""MNIST from its idx files (LeCun, Bottou, Bengio, Haffner 1998), packed with gzip or not.

Strict parsing, exact lengths.
"""

import gzip
import os
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.source import InvalidSource, Records, Source

TRAIN_IMAGES: Final = "train-images-idx3-ubyte"
TRAIN_LABELS: Final = "train-labels-idx1-ubyte"
TEST_IMAGES: Final = "t10k-images-idx3-ubyte"
TEST_LABELS: Final = "t10k-labels-idx1-ubyte"
MAX_IDX_BYTES: Final = 64 << 20
_CLASSES: Final = 10
_UNSIGNED_BYTE: Final = 0x08


def default_folder() -> Path:
    """The folder `mnist` under the environment variable MASKEDLARK_DATA, or under ../shared/data."""
    return Path(os.environ.get("MASKEDLARK_DATA", "../shared/data")) / "mnist"


def load_mnist(folder: Path) -> Source:
    """The training digits to report, and the test digits as the panel.

    Every impression converts, to its digit.

    Raises:
        InvalidSource: a file is missing or is not the idx file that it should be.
    """
    records = _records(folder, TRAIN_IMAGES, TRAIN_LABELS)
    pixels = range(records.features.shape[1])
    return Source(
        name="mnist",
        records=records,
        own_test=_records(folder, TEST_IMAGES, TEST_LABELS),
        feature_names=tuple(f"pixel {pixel}" for pixel in pixels),
        label_names=tuple(str(digit) for digit in range(_CLASSES)),
        default_label=None,
        scaling="pixels are bytes already",
        notes=("the panel is the published test set unless a fraction is asked for",),
    )


def parse_idx(content: bytes, dimensions: int, what: str) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes as an array of that many dimensions.

    Raises:
        InvalidSource: another magic number, or a length that is not the header's.
    """
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        raise InvalidSource(f"{what} is not an idx file of bytes in {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))
    count = 1
    for size in shape:  # Python integers: a hostile header cannot wrap around
        count *= size
    if len(content) != header + count:
        raise InvalidSource(f"{what} has {len(content)} bytes; its header says {header + count}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def unpack(packed: bytes, what: str) -> bytes:
    """The content of a gzip file, refused beyond 64 MiB before it is unpacked further.

    Raises:
        InvalidSource: not gzip, damaged, or too long.
    """
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = unpacker.decompress(packed, MAX_IDX_BYTES + 1)
    except zlib.error:
        raise InvalidSource(f"{what} is not a sound gzip file") from None
    if len(content) > MAX_IDX_BYTES:
        raise InvalidSource(f"{what} unpacks to more than {MAX_IDX_BYTES} bytes")
    if not unpacker.eof:
        raise InvalidSource(f"{what} ends too early")
    return content


def pack(content: bytes) -> bytes:
    """The content as gzip, the same bytes every time."""
    return gzip.compress(content, mtime=0)


def _records(folder: Path, images_name: str, labels_name: str) -> Records:
    images = parse_idx(_read(folder, images_name), 3, images_name)
    labels = parse_idx(_read(folder, labels_name), 1, labels_name)
    if len(images) != len(labels):
        raise InvalidSource(f"{images_name} has {len(images)} images, {labels_name} {len(labels)} labels")
    if len(labels) and labels.max() >= _CLASSES:
        raise InvalidSource(f"{labels_name} holds a label that is not a digit")
    return Records(features=images.reshape(len(images), -1), labels=labels.astype(np.float64))


def _read(folder: Path, name: str) -> bytes:
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.is_file():
        return plain.read_bytes()
    if packed.is_file():
        return unpack(packed.read_bytes(), packed.name)
    raise InvalidSource(
        f"no {name}[.gz] in {folder}: give --mnist-dir, or run `browser-sim download mnist --to DIR`"
    )
