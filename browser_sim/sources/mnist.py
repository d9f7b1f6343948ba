"""MNIST from its idx files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from browser_sim.source import InvalidSource, Source, SourceRecords
from maskedlark.encoding.idx import TEST, TRAIN, idx_pair, unpack

if TYPE_CHECKING:
    from maskedlark.encoding.encoder import Encoder

_CLASSES: Final = 10


def default_folder() -> Path:
    """Return the folder `mnist` under MASKEDLARK_DATA, or under ../shared/data."""
    return Path(os.environ.get("MASKEDLARK_DATA", "../shared/data")) / "mnist"


def load_mnist(folder: Path, encoder: "Encoder | None" = None) -> Source:
    """Load the training digits to report, and the test digits as the panel.

    Every impression converts, to its digit. Features are pixels, or what an encoder of images makes of them.

    Raises:
        InvalidSource, InvalidTask: a file is missing or is not the idx file that it should be, or the encoder
            is of other images.
    """
    records = _records(folder, TRAIN, encoder)
    return Source(
        name="mnist",
        records=records,
        own_test=_records(folder, TEST, encoder),
        feature_names=_names(records, encoder),
        label_names=tuple(str(digit) for digit in range(_CLASSES)),
        default_label=None,
        scaling="pixels are bytes already" if encoder is None else "histograms of oriented gradients",
        notes=("the panel is the published test set unless a fraction is asked for",),
    )


def _names(records: SourceRecords, encoder: "Encoder | None") -> tuple[str, ...]:
    if encoder is not None:
        return encoder.feature_names
    return tuple(f"pixel {pixel}" for pixel in range(records.features.shape[1]))


def _records(folder: Path, names: tuple[str, str], encoder: "Encoder | None") -> SourceRecords:
    found = idx_pair(names, lambda name: _read(folder, name))
    # The names of classes are digits: a file of letters (EMNIST) would be read without a word.
    if len(found.labels) and found.labels.max() >= _CLASSES:
        raise InvalidSource(f"{names[1]} contains a label that is not a digit from 0 to 9")
    features = (
        found.images.reshape(len(found.images), -1)
        if encoder is None
        else encoder.image_features(found.images)
    )
    return SourceRecords(features=features, labels=found.labels.astype(np.float64))


def _read(folder: Path, name: str) -> bytes:
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.is_file():
        return plain.read_bytes()
    if packed.is_file():
        return unpack(packed.read_bytes(), packed.name)
    raise InvalidSource(
        f"{folder} has no {name}[.gz]: give another folder with --mnist-dir, or run `browser-sim "
        "download mnist --to DIR`"
    )
