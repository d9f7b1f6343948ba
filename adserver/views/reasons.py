"""Reasons that the ad server gives besides those of `maskedlark.errors`.

In its answers over HTTP, and of jobs that stopped.

docs/reference/errors.md is written from here, too.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from adserver.ingest.json_error import INTERNAL
from adserver.store.leases import WORKERS_LOST
from adserver.training.job_outcome import (
    BUDGET_SPENT,
    FEW_DEVICES,
    HELPER_UNAVAILABLE,
    INTERNAL_ERROR,
    INVALID_TASK,
)
from maskedlark.error_contract import Charged, Contract, contract
from maskedlark.errors import JobReason, ModelReason
from maskedlark.frozen import frozen


@frozen
class FurtherReason:
    """A reason that is no typed error's.

    Attributes:
        meaning: What happened.
        follows: Whether to ask again (of a job: to resume it as it is), what it cost and what to do.
    """

    meaning: str
    follows: Contract


HTTP_REASONS: Final[Mapping[str, FurtherReason]] = {
    "bad_request": FurtherReason(
        meaning="400: `after` is not a value that a page of `GET /v1/tasks` gave",
        follows=Contract(remedy="pass on `after` as the page before gave it, or leave it out"),
    ),
    "not_found": FurtherReason(
        meaning="404: no such path, or no such task",
        follows=Contract(remedy="`GET /v1/tasks` lists the tasks that are there"),
    ),
    "method_not_allowed": FurtherReason(
        meaning="405: the path has another method", follows=Contract(remedy="use the method of the path")
    ),
    "request_timeout": FurtherReason(
        meaning="408: the body did not arrive in time; a head that does not is answered 408 without a body",
        follows=Contract(is_retryable=True, remedy="send it again, in smaller batches or over a faster way"),
    ),
    "service_unavailable": FurtherReason(
        meaning="503: too many connections or bodies at once, or the ad server's database is away",
        follows=Contract(
            is_retryable=True,
            remedy="send it again with backoff and jitter, not before the answer's Retry-After",
        ),
    ),
    INTERNAL: FurtherReason(
        meaning="500: the ad server met an error of its own",
        follows=Contract(
            remedy="the operator reads the log; reports may be sent again, for each is stored once"
        ),
    ),
}
"""By what `reason` says, where `error` is RequestRefused or Internal."""

JOB_STOPS: Final[Mapping[str, FurtherReason]] = {
    HELPER_UNAVAILABLE: FurtherReason(
        meaning="a helper does not answer: the job waits for it, and fails after a week",
        follows=Contract(
            is_retryable=True,
            charged=Charged.ONCE,
            remedy="have the helper started: a job that waits goes on by itself; resume one that has failed",
        ),
    ),
    FEW_DEVICES: FurtherReason(
        meaning="a round's window is over and too few devices have answered it: the job waits for more",
        follows=Contract(
            is_retryable=True,
            remedy=(
                "nothing while devices come; if none do, see that they reach the ad server, or cancel the job"
            ),
        ),
    ),
    INVALID_TASK: FurtherReason(
        meaning="the task or a setting of the job is wrong",
        follows=Contract(charged=Charged.BEFORE, remedy="correct what the cause names, and submit a new job"),
    ),
    INTERNAL_ERROR: FurtherReason(
        meaning="the ad server met an error of its own",
        follows=Contract(charged=Charged.ONCE, remedy="the ad server's operator reads its log; then resume"),
    ),
    WORKERS_LOST: FurtherReason(
        meaning="one worker after the other died or hung on it, without a round between them",
        follows=Contract(
            charged=Charged.ONCE, remedy="see what ends the workers (memory is the usual cause); then resume"
        ),
    ),
    BUDGET_SPENT: FurtherReason(
        meaning=(
            "the job is done: it was submitted with --until-budget, and the dataset's budget does not allow"
            " another round"
        ),
        follows=Contract(
            charged=Charged.BEFORE, remedy="nothing: the model is there; to train on, seal another dataset"
        ),
    ),
}
"""By what a job's `reason` says; a job stops with the reasons of InvalidModel and JobRefused, too."""


def stop_remedy(reason: str) -> str:
    """Return what to do about a job that stopped with a reason; empty for an unknown reason."""
    if reason in JOB_STOPS:
        return JOB_STOPS[reason].follows.remedy
    # A stored job has the reason's word without its kind
    for reasons in (JobReason, ModelReason):
        with suppress(ValueError):
            return contract(reasons(reason)).remedy
    return ""
