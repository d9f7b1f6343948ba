"""A task from Python: the fields of `Task`, with the defaults of `adserver task create`."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adserver.collecting.task_settings import (
    check_labels,
    check_measurement,
    encoder_from,
    measurement_from,
    measurement_of_settings,
    norm_for,
    num_decoys,
    num_features,
    period,
)
from adserver.records.defaults import ALL_DECOYS, DEFAULT_COLLUSION_FACTOR
from maskedlark.canonical import build
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.task import LabelSpace
from maskedlark.reports.task_kinds import PrivacyUnit

CLIP_NORM_OF_MEASUREMENT: Final = 1.0
"""The clip bound of a task with a measurement that names none: training alone has a use for it."""
_SALT_BYTES: Final = 16
_HOUR_S: Final = 3_600
_DELTA: Final = 1e-5


def read_encoder_of(encoder: Encoder | Mapping[str, Any] | str | Path | None) -> Encoder | None:
    """Return an encoder: itself, the one in a file, or one of the values of such a file.

    Raises:
        InvalidTask: the file or the values hold none.
    """
    if encoder is None or isinstance(encoder, Encoder):
        return encoder
    if isinstance(encoder, Mapping):
        return build(Encoder, dict(encoder))
    return encoder_from(Path(encoder))


def read_measurement_of(
    measurement: Measurement | Mapping[str, Any] | str | Path | None,
) -> Measurement | None:
    """Return a measurement: itself, the one in a file, or one of the values of such a file.

    Raises:
        InvalidTask: the file or the values hold none, or as `check_measurement`.
    """
    if measurement is None:
        return None
    if isinstance(measurement, Measurement):
        check_measurement(measurement)
        return measurement
    if isinstance(measurement, Mapping):
        return measurement_of_settings(measurement)
    return measurement_from(Path(measurement))


def task_fields(
    given: Mapping[str, Any],
    *,
    labels: LabelSpace,
    encoder: Encoder | None,
    features: int | None,
    measurement: Measurement | None,
    days: float,
    decoys: str = ALL_DECOYS,
) -> dict[str, Any]:
    """Return every field of `Task` but the helpers: those given and not None, else defaults.

    Raises:
        InvalidTask: settings do not go together, or a task without a measurement has no clip bound.
    """
    # An option that was not typed is None, and must not push a default aside
    given = {name: value for name, value in given.items() if value is not None}
    if "clip_norm" not in given:
        if measurement is None:
            raise InvalidTask(
                "clip_norm is not given: expected the largest norm that one report or update adds to a sum, "
                "such as 1; only a task with a measurement does without"
            )
        given["clip_norm"] = CLIP_NORM_OF_MEASUREMENT
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
    is_of_updates = "updates" in given
    return {
        # Else two tasks with equal settings would be one, with one budget
        "salt": os.urandom(_SALT_BYTES),
        "num_features": num_features(features, encoder),
        "encoder": None if encoder is None else encoder.digest,
        "labels": labels,
        "num_decoys": num_decoys(decoys, labels),
        "mechanism": mechanism,
        "norm": norm_for(mechanism),
        "collusion_epsilon": DEFAULT_COLLUSION_FACTOR * given["epsilon"],
        "delta": _DELTA,
        "time_bucket_s": time_bucket_s,
        "starts_at": lasting.starts_at,
        "expires_at": lasting.expires_at,
        "measurement": measurement,
        "unit": PrivacyUnit.USER if is_of_updates else PrivacyUnit.REPORT,
        "proof": not is_of_updates,
        # Last: what is given has its way over every default
        **given,
    }
