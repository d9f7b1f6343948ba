"""Expect a refusal for one reason: `with refused(JobReason.OVERFLOW): ...`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from maskedlark.errors import (
    InvalidModel,
    JobReason,
    JobRefused,
    ModelReason,
    Reason,
    ReportReason,
    ReportRejected,
)

_ERRORS: Final[dict[type[Reason], type[Any]]] = {
    JobReason: JobRefused,
    ModelReason: InvalidModel,
    ReportReason: ReportRejected,
}


@contextmanager
def refused(reason: Reason, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Check that the block raises the error of this reason, with a message that matches."""
    with pytest.raises(_ERRORS[type(reason)], match=match) as refusal:
        yield refusal
    assert refusal.value.reason is reason
