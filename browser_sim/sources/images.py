"""Images and their labels from two idx files, as an encoder of images makes features of them."""

from pathlib import Path
from typing import Final

import numpy as np

from browser_sim.source import InvalidSource, Source, SourceRecords
from maskedlark.canonical import build
from maskedlark.encoding.encoder import ClassLabel, Encoder
from maskedlark.encoding.idx import ImagesAndLabels, idx_pair, unpack

COLUMN: Final = "image"
LABEL: Final = "label"
_GZIP: Final = b"\x1f\x8b"


def fit_images(images: Path, labels: Path) -> Encoder:
    """Return the encoder of images of this size and of these labels' classes.

    Raises:
        InvalidSource: a file does not exist.
        InvalidTask: they are no idx files of as many images as labels, there is no label, or the sides
            of the images are not multiples of 4 up to 256.
    """
    found = _read(images, labels)
    height, width = found.images.shape[1:]
    column = {"kind": "image", "name": COLUMN, "height": height, "width": width}
    classes = [str(label) for label in np.unique(found.labels)]
    return build(
        Encoder, {"columns": [column], "label": {"kind": "classes", "name": LABEL, "classes": classes}}
    )


def load_images(images: Path, labels: Path, encoder: Encoder) -> Source:
    """Load images as records.

    Raises:
        InvalidSource: a file does not exist, or the encoder was not fitted to classes.
        InvalidTask: they are no idx files of as many images as labels, or the encoder is of other images.
        WrongCell: a label is not one of the encoder's classes.
    """
    if not isinstance(encoder.label, ClassLabel):
        raise InvalidSource("the encoder has no classes: fit it to images and their labels")
    found = _read(images, labels)
    cells = {encoder.label.name: [str(label) for label in found.labels]}
    return Source(
        name=images.name,
        records=SourceRecords(
            features=encoder.image_features(found.images),
            labels=encoder.labels(cells),
            encoder=encoder.digest,
        ),
        feature_names=encoder.feature_names,
        label_names=encoder.label.classes,
        default_label=None,
        scaling="histograms of oriented gradients",
    )


def _read(images: Path, labels: Path) -> ImagesAndLabels:
    paths = {str(path): path for path in (images, labels)}
    return idx_pair((str(images), str(labels)), lambda name: _content(paths[name]))


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSource(f"cannot read {path}: {error.strerror}") from None
    return unpack(content, path.name) if content.startswith(_GZIP) else content
