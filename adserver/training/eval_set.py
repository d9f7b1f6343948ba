"""The ad server's own evaluation set: people who agreed that it may see their features and labels.

It never leaves the ad server.

The file is an .npz with `features` u8 (n, d) and `labels` (n,), as `browser-sim run --holdout` writes it;
where an encoder made the features, its digest `encoder` u8 (32,); and where people have several rows,
`people` int64 (n,), equal for rows of one person.
"""

import math
import zlib
from dataclasses import field, replace
from io import BytesIO
from tokenize import TokenError
from typing import Any, Final, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss

MAX_BYTES: Final = 1 << 30
FOLDS: Final = 5
"""Parts of a panel; each is scored by what was trained on the others."""
_KINDS_OF_NUMBERS: Final = "uif"
# What zipfile and numpy raise at bytes of another form.
_NOT_NPZ: Final = (
    ValueError, KeyError, OSError, EOFError, BadZipFile, TypeError, AttributeError, OverflowError,
    RuntimeError, SyntaxError, TokenError, zlib.error,
)  # fmt: skip


@frozen
class EvalSet:
    """Labelled examples.

    Shapes: features u8 (n, d); labels (n,), finite numbers; n at least 1.

    Attributes:
        encoder: The digest of the encoder that made the features; None: the file does not say it.
        people: Shape (n,), equal for rows of one person; None: the file does not say it, and each row is of a
            person of its own.
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[Any] = field(repr=False)
    encoder: bytes | None = None
    people: NDArray[np.int64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.features)

    def mean_bytes(self) -> tuple[int, ...]:
        """Return the mean of each feature, rounded to a byte."""
        return tuple(int(mean) for mean in np.rint(self.features.mean(axis=0)))

    def take(self, rows: NDArray[np.integer]) -> "EvalSet":
        """Return these rows, in this order."""
        people = None if self.people is None else self.people[rows]
        return replace(self, features=self.features[rows], labels=self.labels[rows], people=people)

    @property
    def num_people(self) -> int:
        """The number of people whose rows these are."""
        return len(self) if self.people is None else len(np.unique(self.people))

    def parts(self, count: int, random: np.random.Generator) -> list[NDArray[np.intp]]:
        """Divide the rows at random into parts of one size, to within a row, with each label in each part.

        Where the set says whose each row is, all rows of a person are in one part, and parts have about as
        many rows each: what learned from some rows of a person would be flattered by the others.
        """
        if self.people is not None:
            return _parts_of_people(self.people, count, random)
        order = random.permutation(len(self))
        order = order[np.argsort(self.labels[order], kind="stable")]
        return [order[start::count] for start in range(count)]

    def folds(self) -> list[tuple[NDArray[np.intp], "EvalSet"]]:
        """Return the rows of each of `FOLDS` parts, always the same, with the records that are not in it."""
        held = self.parts(FOLDS, np.random.default_rng(0))
        return [(rows, self.take(np.setdiff1d(np.arange(len(self)), rows))) for rows in held]

    def check_fits(self, model: Model, loss: TrainedLoss) -> None:
        """Refuse a set whose features or labels are not what the model and its loss are about.

        Raises:
            JobRefused(MALFORMED)
        """
        if self.features.shape[1] != model.input_width:
            raise _reject_malformed(
                f"has {self.features.shape[1]} features a record, but the model takes {model.input_width}"
            )
        classes = _num_classes(model, loss)
        if classes is not None and not np.isin(self.labels, np.arange(classes)).all():
            raise _reject_malformed(f"has labels outside the classes 0..{classes - 1}")

    def check_encoder(self, expected: bytes | None, *, owner: Literal["task", "model"] = "task") -> None:
        """Refuse a set of another encoder, whose bytes mean other things even where they are as many.

        Args:
            expected: The encoder's digest; None: any set is taken, as is one that does not say its encoder.
            owner: Whose encoder is expected.

        Raises:
            JobRefused(MALFORMED)
        """
        if self.encoder is not None and expected is not None and self.encoder != expected:
            raise _reject_malformed(
                f"was made by the encoder {self.encoder.hex()[:12]}, but the {owner}'s is "
                f"{expected.hex()[:12]}: encode it again with the {owner}'s encoder "
                "(`browser-sim encode --csv FILE --encoder ENCODER -o panel.npz`)"
            )


def read_eval_set(encoded: bytes) -> EvalSet:
    """Parse an .npz file from a person; nothing in it is unpickled.

    Raises:
        JobRefused(TOO_LARGE, MALFORMED)
    """
    if len(encoded) > MAX_BYTES:
        raise JobRefused(
            JobReason.TOO_LARGE,
            f"the evaluation set has {len(encoded)} bytes, the limit is {MAX_BYTES}: use fewer records",
        )
    try:
        with ZipFile(BytesIO(encoded)) as archive:
            features, labels = _array(archive, "features"), _array(archive, "labels")
            is_named = "encoder.npy" in archive.namelist()
            encoder = _array(archive, "encoder").tobytes() if is_named else None
            people = _array(archive, "people") if "people.npy" in archive.namelist() else None
    except _NOT_NPZ as error:
        raise _reject_malformed(
            f"is not an .npz file with features and labels ({type(error).__name__}): `browser-sim encode "
            "--csv FILE --encoder ENCODER -o panel.npz` makes one of a table"
        ) from None
    if features.dtype != np.uint8 or features.ndim != 2:
        raise _reject_malformed(
            f"has features of {features.dtype} {features.shape}: expected uint8 (records, width)"
        )
    if labels.shape != features.shape[:1] or not len(labels):
        raise _reject_malformed(
            f"has labels of shape {labels.shape} for {len(features)} records: expected one label "
            "for each record, and at least one record"
        )
    if labels.dtype.kind not in _KINDS_OF_NUMBERS or not np.isfinite(labels).all():
        raise _reject_malformed("has labels that are not finite numbers: correct or remove those records")
    if people is not None and (people.shape != labels.shape or people.dtype != np.int64):
        raise _reject_malformed(
            f"has people of {people.dtype} {people.shape}: expected int64 {labels.shape}, a number for each "
            "record"
        )
    return EvalSet(features=features, labels=labels, encoder=encoder, people=people)


def _parts_of_people(
    people: NDArray[np.int64], count: int, random: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Divide rows at random into parts with all rows of a person in one, of about as many rows each."""
    names, person_of, sizes = np.unique(people, return_inverse=True, return_counts=True)
    order = random.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]  # the largest first, so that small ones fill up
    part_of, filled = np.empty(len(names), np.intp), np.zeros(count, np.int64)
    for name in order:
        part_of[name] = np.argmin(filled)
        filled[part_of[name]] += sizes[name]
    return [np.flatnonzero(part_of[person_of] == part) for part in range(count)]


def _array(archive: ZipFile, name: str) -> NDArray[Any]:
    """Read one array of the file.

    Its header is believed only where the bytes are there, so that it cannot ask for memory.
    """
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > MAX_BYTES:
        raise JobRefused(
            JobReason.TOO_LARGE,
            f"an array of the evaluation set unpacks to {member.file_size} bytes, the limit is "
            f"{MAX_BYTES}: use fewer records",
        )
    # Not by np.load, which reserves what the header asks for before it looks for the values.
    stream = BytesIO(archive.read(member))
    read_header = read_array_header_1_0 if read_magic(stream) == (1, 0) else read_array_header_2_0
    shape, is_fortran, dtype = read_header(stream)
    values = stream.read()
    # Objects would have to be unpickled, which runs what a file says.
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError("the header does not fit the values")
    return np.frombuffer(values, dtype).reshape(shape, order="F" if is_fortran else "C")


def _num_classes(model: Model, loss: TrainedLoss) -> int | None:
    """Return the number of classes of a classifier's loss; None for regression losses."""
    match loss:
        case Heads():
            return len(loss.heads[0].targets)
        case Loss.CROSS_ENTROPY:
            return model.output_width
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return 2
        case Loss.MSE | Loss.POISSON:
            return None


def _reject_malformed(why: str) -> JobRefused:
    return JobRefused(JobReason.MALFORMED, f"the evaluation set {why}")
