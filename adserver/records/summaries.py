"""Short records of what an ad server holds and sees, the same from every face: plain values only."""

from collections.abc import Mapping

from adserver.records.access import GrantKind, Scope
from maskedlark.frozen import frozen


@frozen
class QuerySummary:
    """A query or evaluation in a list.

    Attributes:
        query_id: 32 hex digits.
        kind: The kind of release, a name of `maskedlark.releases.kinds`.
        task_id: In hex.
        dataset_id: In hex.
        asked_at: Unix seconds.
        is_answered: Whether its answer is stored.
        about: The query in one line, for people.
    """

    query_id: str
    kind: str
    task_id: str
    dataset_id: str
    asked_at: float
    is_answered: bool
    about: str


@frozen
class GrantSummary:
    """A token, or a browser that is logged in, without its secret.

    Attributes:
        grant_id: By which people revoke it; it tells nothing of the secret.
        kind: Token or session.
        scope: What it allows.
        name: What it is for.
        created_at: Unix seconds.
        expires_at: Unix seconds.
    """

    grant_id: str
    kind: GrantKind
    scope: Scope
    name: str
    created_at: float
    expires_at: float


@frozen
class IntakeSummary:
    """The number of reports by outcome since a server started. Reports have no times and no senders.

    Attributes:
        since: When the server started, in Unix seconds.
        accepted: Stored reports.
        duplicates: Reports that were stored before.
        rejected: By reason.
    """

    since: float
    accepted: int
    duplicates: int
    rejected: Mapping[str, int]


@frozen
class HelperSummary:
    """The last known state of a helper.

    Attributes:
        role: 0 or 1.
        address: host:port.
        is_well: Whether it answered the last time, refuses no calls, and has keys to seal to; None before the
            first answer.
        cause: Why it is not well.
        answered_at: Unix seconds of its last answer; None if it has not answered yet.
        latency_ms: The duration of that answer.
        name: Its name, as it states it.
        version: Of its software.
        software_digest: Digest (hex) of what computes on every path: golden vectors, and versions of
            libraries. A statement's `numerics` is of one job's path alone.
        tasks: How many it has.
        datasets: How many it has.
        open_jobs: How many it has.
        rounds_answered: How many in all.
        keys_not_after: When its signed list of keys ends, in Unix seconds.
    """

    role: int
    address: str
    is_well: bool | None
    cause: str = ""
    answered_at: float | None = None
    latency_ms: float | None = None
    name: str | None = None
    version: str | None = None
    software_digest: str | None = None
    tasks: int | None = None
    datasets: int | None = None
    open_jobs: int | None = None
    rounds_answered: int | None = None
    keys_not_after: int | None = None
