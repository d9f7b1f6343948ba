"""MNIST's training images for benchmarks.

The shared data folder's file, or bytes as sparse where there is none.
"""

import gzip
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = (
    Path(os.environ.get("MASKEDLARK_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "mnist"
)


def load_training_set() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Features (60000, 784) and labels (60000,)."""
    if not FOLDER.exists():
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (60_000, 784), dtype=np.uint8)
        images[rng.integers(0, 256, images.shape, dtype=np.uint8) >= 49] = 0  # four fifths
        return images, rng.integers(0, 10, 60_000)
    return read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784), read(
        "train-labels-idx1-ubyte.gz", 8
    ).astype(np.int64)


def load_test_set() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Features (10000, 784) and labels (10000,)."""
    return read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784), read(
        "t10k-labels-idx1-ubyte.gz", 8
    ).astype(np.int64)


def read(name: str, header: int) -> NDArray[np.uint8]:
    """The bytes of an idx file after its header."""
    with gzip.open(FOLDER / name) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)
