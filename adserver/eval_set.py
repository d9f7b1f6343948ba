"""The ad server's own evaluation set: people who agreed that it may see their features and labels. It never leaves the ad server.

The file is an .npz with `features` u8 (n, d) and `labels` (n,), as `browser-sim run --holdout` writes it.
"""

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.graph import Loss, Model

MAX_BYTES: Final = 1 << 30
_KINDS_OF_NUMBERS: Final = "uif"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Labelled examples.

    Shapes: features u8 (n, d); labels (n,), finite numbers; n at least 1.
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.features)

    def check_fits(self, model: Model, loss: Loss) -> None:
        """Refuse a set whose features or labels are not what the model and its loss are about.

        Raises:
            JobRefused(MALFORMED)
        """
        if self.features.shape[1] != model.input_width:
            raise _malformed(f"has {self.features.shape[1]} features a record; the model takes {model.input_width}")
        classes = _num_classes(model, loss)
        if classes is not None and not np.isin(self.labels, np.arange(classes)).all():
            raise _malformed(f"has labels that are not classes 0..{classes - 1}")


def read_eval_set(encoded: bytes) -> EvalSet:
    """Parse an .npz file from a person; nothing in it is unpickled.

    Raises:
        JobRefused(TOO_LARGE, MALFORMED)
    """
    if len(encoded) > MAX_BYTES:
        raise JobRefused(JobReason.TOO_LARGE, f"an evaluation set has at most {MAX_BYTES} bytes, not {len(encoded)}")
    try:
        with np.load(BytesIO(encoded), allow_pickle=False) as arrays:
            features, labels = arrays["features"], arrays["labels"]
    except (ValueError, KeyError, OSError, EOFError, BadZipFile, TypeError, AttributeError) as error:
        raise _malformed(f"is no .npz file with features and labels: {type(error).__name__}") from None
    if features.dtype != np.uint8 or features.ndim != 2:
        raise _malformed(f"has features of {features.dtype} {features.shape}, not uint8 (records, width)")
    if labels.shape != features.shape[:1] or not len(labels):
        raise _malformed(f"has labels of shape {labels.shape} for {len(features)} records; each record has one, and there is at least one")
    if labels.dtype.kind not in _KINDS_OF_NUMBERS or not np.isfinite(labels).all():
        raise _malformed("has labels that are not finite numbers")
    return EvalSet(features=features, labels=labels)


def _num_classes(model: Model, loss: Loss) -> int | None:
    """How many classes a classifier's loss is about; None for the losses of numbers."""
    match loss:
        case Loss.CROSS_ENTROPY:
            return model.output_width
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return 2
        case Loss.MSE | Loss.POISSON:
            return None


def _malformed(why: str) -> JobRefused:
    return JobRefused(JobReason.MALFORMED, f"the evaluation set {why}")
