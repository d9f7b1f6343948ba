"""A note in a model's metadata that names the panels which its weights were trained on in the clear.

    noted = note_panel(encoded, panel)
    was_trained_on(noted, panel)  # True

Figures of the same records are too good: a job that begins at such weights needs others to be evaluated on.
The note stays at the ad server: what helpers get is without it (`model_file.without_notes`).
"""

from hashlib import sha256
from typing import Final

import numpy as np

from adserver.training.eval_set import EvalSet
from adserver.training.pipeline import LOSS_IS, describe, notes_of

PANELS_ARE: Final = "maskedlark.panels"
"""Of the note: the digests of all such panels in hex, by spaces."""
KEEP_BACK: Final = (
    "choose rounds and compare jobs by records that were kept back, or with `adserver evaluate` "
    "(client.evaluate)"
)
"""What to do where the records that evaluate a model trained it."""


def digest_panel(panel: EvalSet) -> str:
    """Return the SHA-256 of a panel's shape, features and labels in hex, however its file is compressed.

    Labels count as numbers, so their integer type changes nothing.
    """
    shape = np.array(panel.features.shape, "<u8").tobytes()
    labels = panel.labels.astype("<f8").tobytes()
    return sha256(shape + panel.features.tobytes() + labels).hexdigest()


def note_panel(encoded: bytes, panel: EvalSet) -> bytes:
    """Return the model with a note that it was trained on a panel, next to those it was trained on before."""
    known = _panels(encoded)
    return describe(encoded, **{PANELS_ARE: " ".join(dict.fromkeys((*known, digest_panel(panel))))})


def was_trained_on(encoded: bytes, panel: EvalSet) -> bool:
    """Return whether a model's note names the panel; a part of that panel is another one."""
    return digest_panel(panel) in _panels(encoded)


def is_noted_trained(encoded: bytes) -> bool:
    """Return whether a model's notes say that a job exported it, or that a panel trained it."""
    return not {LOSS_IS, PANELS_ARE}.isdisjoint(notes_of(encoded))


def _panels(encoded: bytes) -> list[str]:
    return notes_of(encoded).get(PANELS_ARE, "").split()
