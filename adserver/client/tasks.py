"""A task from Python: the fields of `Task`, with the defaults of `adserver task create`."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adserver.collecting.task_settings import (
    check_labels,
    encoder_from,
    label_space,
    measurement_of_settings,
    norm_for,
    num_classes,
    num_decoys,
    num_features,
    period,
)
from adserver.records.defaults import ALL_DECOYS, DEFAULT_COLLUSION_FACTOR
from maskedlark.encoding.encoder import Encoder
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task import LabelSpace
from maskedlark.reports.task_kinds import PrivacyUnit

_SALT_BYTES: Final = 16
_HOUR_S: Final = 3_600
_DELTA: Final = 1e-5


def read_encoder_of(encoder: Encoder | str | Path | None) -> Encoder | None:
    """An encoder, or the one in a file.

    Raises:
        InvalidTask: the file holds none.
    """
    return encoder if encoder is None or isinstance(encoder, Encoder) else encoder_from(Path(encoder))


def labels_of(classes: int | None, default_label: int | None, encoder: Encoder | None) -> LabelSpace:
    """The classes that are given, or those of the encoder.

    Raises:
        InvalidTask: neither gives any, or the default label is none of them.
    """
    found = num_classes(classes, None, encoder)
    return label_space(classes=found, max_value=None, num_buckets=None, default_label=default_label)


def task_fields(
    given: Mapping[str, Any],
    *,
    classes: int | None,
    default_label: int | None,
    encoder: Encoder | None,
    features: int | None,
    measurement: Mapping[str, Any] | None,
    days: float,
) -> dict[str, Any]:
    """Every field of `Task` but the helpers: those that are given, and the defaults of the others.

    Raises:
        InvalidTask: settings do not go together.
    """
    labels = given["labels"] if "labels" in given else labels_of(classes, default_label, encoder)
    check_labels(labels, encoder)
    mechanism = Mechanism(given.get("mechanism", Mechanism.GAUSSIAN))
    time_bucket_s = int(given.get("time_bucket_s", _HOUR_S))
    lasting = period(
        now=time.time(),
        time_bucket_s=time_bucket_s,
        days=days,
        starts_at=given.get("starts_at"),
        expires_at=given.get("expires_at"),
    )
    is_of_updates = given.get("updates") is not None
    return {
        "salt": os.urandom(_SALT_BYTES),
        "num_features": num_features(features, encoder),
        "encoder": None if encoder is None else encoder.digest,
        "labels": labels,
        "num_decoys": num_decoys(ALL_DECOYS, labels),
        "mechanism": mechanism,
        "norm": norm_for(mechanism),
        "collusion_epsilon": DEFAULT_COLLUSION_FACTOR * given["epsilon"],
        "delta": _DELTA,
        "time_bucket_s": time_bucket_s,
        "starts_at": lasting.starts_at,
        "expires_at": lasting.expires_at,
        "measurement": None if measurement is None else measurement_of_settings(measurement),
        "unit": PrivacyUnit.USER if is_of_updates else PrivacyUnit.REPORT,
        "proof": not is_of_updates,
        **given,
    }
