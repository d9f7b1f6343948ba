"""Small MNIST-shaped idx files for tests."""

import gzip
from pathlib import Path

import numpy as np

from maskedlark.encoding.idx import TEST, TRAIN


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.tobytes()


def pack(content: bytes) -> bytes:
    """The content as gzip, the same bytes every time."""
    return gzip.compress(content, mtime=0)


def write_mnist(folder: Path, *, train: int, test: int, packed: bool) -> None:
    """Random images whose labels count 0 to 9 over and over."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for count, images_name, labels_name in (
        (train, *TRAIN),
        (test, *TEST),
    ):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, content in ((images_name, idx(images)), (labels_name, idx(labels))):
            if packed:
                (folder / f"{name}.gz").write_bytes(pack(content))
            else:
                (folder / name).write_bytes(content)
