"""From a request for a job without helpers, whose devices noise their own updates, to a checked job."""

import os
from collections.abc import Mapping
from typing import Final

from adserver.records.submissions import LocalSubmission
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalJob, LocalSettings, local_job
from maskedlark.federated.strategies.line import Line

_JOB_ID_BYTES: Final = 16
_KINDS: Final[Mapping[str, type[LocalSettings]]] = {"line": Line, "draw-and-discard": DrawAndDiscard}


def local_job_of(submission: LocalSubmission) -> LocalJob:
    """Return a new job of the settings that a submission has.

    Raises:
        InvalidTask, InvalidModel: naming the setting.
    """
    if submission.kind not in _KINDS:
        raise InvalidTask(
            f"the strategy is {submission.kind!r}: without helpers, expected one of {', '.join(_KINDS)}"
        )
    given = dict(submission.settings)
    if submission.kind == "line":
        given = {"sampling_rate": 1.0, "noise_multiplier": 0.0, **given}
    return local_job(os.urandom(_JOB_ID_BYTES), build(_KINDS[submission.kind], given), submission.widths)
