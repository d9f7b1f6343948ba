"""From what a person types to a task's fields."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final

from adserver.records.defaults import ALL_DECOYS, GROUP, MAY_BE_HIDDEN, NO_WORDS
from maskedlark import canonical
from maskedlark.encoding.encoder import ClassLabel, Encoder, read_encoder
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.task import LabelSpace
from maskedlark.reports.task_kinds import LabelKind

NO_LABELS: Final = LabelSpace(kind=LabelKind.CLASSES, size=2, default_label=0)
"""The label space of reports that are measured alone: each holds label 0, since there are two at least."""
_KINDS: Final = "--classes and --max-value"
_MOST_NAMED: Final = 10


@frozen
class _Period:
    """When a task's reports may date from, in Unix seconds: from the start, to before the end."""

    starts_at: int
    expires_at: int


def label_space(
    *,
    classes: int | None,
    max_value: int | None = None,
    num_buckets: int | None = None,
    default_label: int | str | None,
    encoder: Encoder | None = None,
    is_measured: bool = False,
    is_python: bool = False,
) -> LabelSpace:
    """Return the label space of --classes, or of --max-value and --num-buckets, or the encoder's.

    The default label is a label, or the name of one of the encoder's classes. With an encoder that has no
    label, and none of these, it is `NO_LABELS` if the task has a measurement. Pages that give labels as
    numbers need no label in the encoder. With `is_python` errors name arguments instead of options.

    Raises:
        InvalidTask: both kinds or none, a number is out of range, the encoder's labels are others, or the
            default label is none of them.
    """
    kinds = "classes" if is_python else _KINDS
    classes = _num_classes(classes, max_value, encoder, named=kinds)
    named = "default_label" if is_python else "--default-label"
    default_label = _default_label(default_label, encoder, named=named)
    is_unlabelled = encoder is not None and encoder.label is None
    if is_unlabelled and classes is max_value is num_buckets is default_label is None:
        if is_measured:
            return NO_LABELS
        raise InvalidTask(
            "the encoder was fitted without a label, and the task declares no labels and no measurement: fit "
            "the encoder with --label COLUMN to train, or declare what is measured "
            f"({'measurement=' if is_python else '--measurement'})"
        )
    if (classes is None) == (max_value is None):
        give = "give classes" if is_python else f"give exactly one of {kinds}"
        raise InvalidTask(f"the label space is not defined: {give}")
    if max_value is None:
        settings = {
            "kind": LabelKind.CLASSES,
            "size": classes,
            "num_buckets": num_buckets,
            "default_label": default_label,
        }
    else:
        buckets = max_value if num_buckets is None else num_buckets
        settings = {
            "kind": LabelKind.VALUES,
            "size": max_value + 1,
            "num_buckets": buckets,
            "default_label": default_label,
        }
    return canonical.build(LabelSpace, settings)


def num_decoys(typed: str, labels: LabelSpace) -> int:
    """Return the typed number, or the number of all labels except the real one.

    Raises:
        InvalidTask: the text is not a number or `all`.
    """
    if typed == ALL_DECOYS:
        # Not all labels of the space: of values, only those that privatisation can give can be real.
        return labels.num_reachable - 1
    if not typed.isdecimal():
        raise InvalidTask(f"--decoys is {typed!r}: expected a number or {ALL_DECOYS!r}")
    return int(typed)


def measurement_from(path: Path | None) -> Measurement | None:
    """Read the measurement that a JSON file declares; docs/reference/task.md lists its fields.

    Raises:
        InvalidTask: not JSON, or a setting is wrong.
    """
    if path is None:
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InvalidTask(f"{path.name} is not valid: expected JSON in UTF-8") from None
    except OSError as error:
        raise InvalidTask(f"cannot read the measurement {path}: {error.strerror}") from None
    return measurement_of_settings(settings)


def measurement_of_settings(settings: Any) -> Measurement:
    """Build the measurement that plain settings declare; a key that lists categories needs no size.

    Raises:
        InvalidTask: a setting is wrong, or as `check_measurement`.
    """
    measurement = canonical.build(Measurement, _with_sizes(settings))
    check_measurement(measurement)
    return measurement


def check_measurement(measurement: Measurement) -> None:
    """Refuse what results could not tell from their own words.

    Raises:
        InvalidTask: a value has a name that results use, or a category is what they write in a word's place.
    """
    # A row of a result is one JSON object: such a value would stand in the place of its group.
    for reserved in (GROUP, MAY_BE_HIDDEN):
        if measurement.value(reserved) is not None:
            raise InvalidTask(
                f"a value may not be named {reserved!r}, because results use this name: rename the value"
            )
    for key in measurement.keys:
        for taken in NO_WORDS.intersection(key.categories):
            raise InvalidTask(
                f"key {key.name!r} may not have the category {taken!r}, which results write in place of a "
                "word: give it another one"
            )


def encoder_from(path: Path | None) -> Encoder | None:
    """Read an encoder that `browser-sim encode --fit` wrote.

    Raises:
        InvalidTask: the file holds none.
    """
    try:
        # Editors end a file with a line break, which canonical bytes do not have.
        return None if path is None else read_encoder(path.read_bytes().rstrip(b"\n"))
    except OSError as error:
        raise InvalidTask(f"cannot read the encoder {path}: {error.strerror}") from None
    except InvalidTask as error:
        raise InvalidTask(
            f"{path} is no encoder: give a file that `browser-sim encode --fit` wrote ({error})"
        ) from None


def _num_classes(
    typed: int | None, max_value: int | None, encoder: Encoder | None, *, named: str = _KINDS
) -> int | None:
    """Return the number of classes: as typed, or the encoder's.

    Raises:
        InvalidTask: the two differ, or the encoder's labels are of another kind.
    """
    label = None if encoder is None else encoder.label
    if label is None:
        return typed
    of_encoder = len(label.classes) if isinstance(label, ClassLabel) else None
    if typed not in (None, of_encoder) or (max_value is None) != isinstance(label, ClassLabel):
        said = f"{of_encoder} classes" if of_encoder else "real values"
        raise InvalidTask(f"the encoder's labels are {said}: leave out {named}, or give the same")
    return of_encoder


def _default_label(typed: int | str | None, encoder: Encoder | None, *, named: str) -> int | None:
    """Return the default label as a number.

    Raises:
        InvalidTask: it is none of the encoder's classes.
    """
    label = None if encoder is None else encoder.label
    classes = label.classes if isinstance(label, ClassLabel) else ()
    if isinstance(typed, str) and typed in classes:
        return classes.index(typed)
    if isinstance(typed, str) or (typed is not None and classes and not 0 <= typed < len(classes)):
        known = ", ".join(f"{place} ({name})" for place, name in enumerate(classes[:_MOST_NAMED]))
        more = ", ..." if len(classes) > _MOST_NAMED else ""
        expected = (
            f"{known}{more}, or a class's name" if classes else "a number, without an encoder of classes"
        )
        raise InvalidTask(f"{named} is {typed!r}: expected {expected}")
    return typed


def note_on_labels(labels: LabelSpace, encoder: Encoder | None) -> str:
    """Return who alone can report to a task whose encoder reads no label; empty where any browser can."""
    if encoder is None or encoder.label is not None or labels == NO_LABELS:
        return ""
    return (
        "the encoder was fitted without a label, so only pages that give labels as numbers can report; "
        "`browser-sim run` reads none: fit the encoder with --label COLUMN, or declare no labels to measure "
        "alone"
    )


def check_labels(labels: LabelSpace, encoder: Encoder | None) -> None:
    """Refuse labels that are not those of the encoder.

    Raises:
        InvalidTask
    """
    is_of_classes = labels.kind is LabelKind.CLASSES
    _num_classes(labels.size if is_of_classes else None, None if is_of_classes else labels.size - 1, encoder)


def num_features(typed: int | None, encoder: Encoder | None) -> int:
    """Return the number of features: as typed, or the encoder's.

    Raises:
        InvalidTask: neither says it, or the two differ.
    """
    of_encoder = None if encoder is None else encoder.num_features
    if typed is not None and of_encoder not in (None, typed):
        raise InvalidTask(
            f"--num-features is {typed}, but the encoder makes {of_encoder} features: leave it out"
        )
    number = typed or of_encoder
    if number is None:
        raise InvalidTask("the number of features is not defined: give --num-features, or --encoder")
    return number


def _with_sizes(settings: Any) -> Any:
    """Fill in the size of each key that lists its categories."""
    # Nothing is checked yet: what is of another form is left for `build`, whose error names it.
    if not isinstance(settings, Mapping) or not isinstance(settings.get("keys"), list | tuple):
        return settings
    keys = [
        {"size": len(key["categories"]), **key}
        if isinstance(key, Mapping) and isinstance(key.get("categories"), list | tuple)
        else key
        for key in settings["keys"]
    ]
    return {**settings, "keys": keys}


def norm_for(mechanism: Mechanism) -> Norm:
    """Return the norm that the noise requires; L2 where there is no noise."""
    match mechanism:
        case Mechanism.LAPLACE:
            return Norm.L1
        case Mechanism.GAUSSIAN | Mechanism.NONE:
            return Norm.L2


def period(
    *, now: float, time_bucket_s: int, days: float, starts_at: int | None, expires_at: int | None
) -> _Period:
    """Return the task's period.

    Without a start it begins with the present time bucket, so that reports of now are inside.

    Raises:
        InvalidTask: it lasts no number of days.
    """
    if not isfinite(days):
        raise InvalidTask(f"--days is {days}: expected a positive, finite number")
    # A bucket of 0 seconds is refused later, with a message; here it must only not divide.
    start = int(now) // max(time_bucket_s, 1) * time_bucket_s if starts_at is None else starts_at
    return _Period(
        starts_at=start, expires_at=start + int(days * 86_400) if expires_at is None else expires_at
    )
