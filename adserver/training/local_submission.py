"""From a request for a job without helpers, whose devices noise their own updates, to a checked job."""

import os
from collections.abc import Mapping
from typing import Any, Final

from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalJob, LocalSettings, local_job
from maskedlark.federated.strategies.line import Line
from maskedlark.frozen import frozen

_JOB_ID_BYTES: Final = 16
_KINDS: Final[Mapping[str, type[LocalSettings]]] = {"line": Line, "draw-and-discard": DrawAndDiscard}


@frozen
class LocalSubmission:
    """A request for a job without helpers.

    Attributes:
        kind: line or draw-and-discard.
        settings: The strategy's, as docs/reference lists them.
        widths: Of the model; exactly two for draw-and-discard.
        seed: Of LINE's first weights.
        is_tested: Whether draw-and-discard rejects models that are too far from its instances.
        updates_each: Updates that a person is expected to send; only a plan uses it.
    """

    kind: str
    settings: Mapping[str, Any]
    widths: tuple[int, ...]
    seed: int = 0
    is_tested: bool = False
    updates_each: int = 1

    def job(self) -> LocalJob:
        """Return a new job of these settings.

        Raises:
            InvalidTask, InvalidModel: naming the setting.
        """
        if self.kind not in _KINDS:
            raise InvalidTask(
                f"the strategy is {self.kind!r}: without helpers, expected one of {', '.join(_KINDS)}"
            )
        given = dict(self.settings)
        if self.kind == "line":
            given = {"sampling_rate": 1.0, "noise_multiplier": 0.0, **given}
        return local_job(os.urandom(_JOB_ID_BYTES), build(_KINDS[self.kind], given), self.widths)
