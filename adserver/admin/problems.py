"""Every refusal of the admin API as problem details (RFC 9457), made of the same reasons as everywhere else.

`error` and `reason` are those of `maskedlark.errors`, so that a program branches on the words that it knows;
`is_retryable`, `charged` and `remedy` are those of `maskedlark.error_contract`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from math import ceil
from typing import Final

from starlette.responses import Response

from adserver.messages.site import Problem
from maskedlark.error_contract import INVALID_SETTING, INVALID_TASK, UNAVAILABLE, Contract, contract
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidSetting,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    Reason,
    ReportRejected,
)

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2
_WRONG_SETTING: Final = "an option or a file of the ad server, or of the command, is wrong"
# 409: the request is right in itself, and what there is now stands against it
_CONFLICT: Final = frozenset(
    {
        JobReason.WRONG_STATE, JobReason.JOB_CHANGED, JobReason.JOB_CLOSED, JobReason.DATASET_CHANGED,
        JobReason.BUDGET_EXHAUSTED, JobReason.QUERY_CHANGED, JobReason.TOO_MANY_JOBS, JobReason.REPORTS_LOST,
    }
)  # fmt: skip
# 502, as a gateway's: what is wrong is behind this server
_HELPERS_FAULT: Final = frozenset(
    {
        JobReason.HELPERS_DISAGREE, JobReason.SUM_OUT_OF_RANGE, JobReason.BAD_ANSWER, JobReason.PEER_FAILED,
        JobReason.LEDGER_ROLLED_BACK, JobReason.DATASET_LOST,
    }
)  # fmt: skip
_OF_SIZE: Final[Mapping[Reason, int]] = {
    JobReason.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    JobReason.QUOTA_EXCEEDED: HTTPStatus.INSUFFICIENT_STORAGE,
}


def problem(
    status: int,
    detail: str,
    *,
    error: str = "RequestRefused",
    reason: str = "",
    title: str = "",
    follows: Contract | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build a refusal as problem details.

    Args:
        status: The HTTP status.
        detail: For people: what is wrong, and what to do about it.
        error: The class of error, or RequestRefused for what the API itself refuses.
        reason: One word for programs; by default the status's name.
        title: What all problems of this type have in common; by default the status's phrase.
        follows: What follows from it.
        headers: To be sent with it.
    """
    named = HTTPStatus(status)
    word = reason or named.name.lower()
    body = Problem(
        type=f"urn:maskedlark:problem:{error}:{word}",
        title=title or named.phrase,
        status=status,
        detail=detail,
        error=error,
        reason=word,
        **({} if follows is None else asdict(follows)),
    )
    return Response(
        body.model_dump_json(exclude_none=True), status, dict(headers or {}), media_type=MEDIA_TYPE
    )


def problem_of(refusal: MaskedLarkError) -> Response:
    """Convert a typed error to problem details."""
    match refusal:
        case HelperUnavailable():
            return problem(
                status_of(refusal),
                str(refusal),
                error="HelperUnavailable",
                reason="helper_unavailable",
                title="a helper or the database does not answer",
                follows=UNAVAILABLE,
                headers={"retry-after": f"{ceil(refusal.retry_after_s or RETRY_AFTER_S)}"},
            )
        case JobRefused() | InvalidModel() | ReportRejected():
            reason: Reason = refusal.reason
            return problem(
                status_of(refusal),
                str(refusal),
                error=type(refusal).__name__,
                reason=reason.value,
                title=reason.meaning,
                follows=contract(reason),
            )
        case _:
            is_setting = isinstance(refusal, InvalidSetting)
            return problem(
                status_of(refusal),
                str(refusal),
                error=(InvalidSetting if is_setting else InvalidTask).__name__,
                reason="invalid_setting" if is_setting else "invalid_task",
                title=_WRONG_SETTING if is_setting else "a setting is wrong",
                follows=INVALID_SETTING if is_setting else INVALID_TASK,
            )


def status_of(refusal: MaskedLarkError) -> int:
    """Return the HTTP status of a typed error, in the API and on pages."""
    if isinstance(refusal, HelperUnavailable):
        return 503
    if not isinstance(refusal, JobRefused):
        return 422
    reason = refusal.reason
    if reason.value.startswith("unknown_"):
        return 404
    if reason in _CONFLICT:
        return 409
    if reason in _HELPERS_FAULT:
        return 502
    return _OF_SIZE.get(reason, 422)
