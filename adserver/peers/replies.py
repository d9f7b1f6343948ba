"""A helper's replies, checked and turned into domain values; nonsense is `JobRefused(BAD_ANSWER)`."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from maskedlark.canonical import build, decode
from maskedlark.errors import InvalidTask, JobReason, JobRefused, ReportReason
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import AdmittedSet
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import HelperIdentity
from maskedlark.rpc.protocols import check_spoken
from maskedlark.utc import format_utc
from protos import helper_pb2

if TYPE_CHECKING:
    from maskedlark.privacy.accounting import Epsilons
    from maskedlark.releases.release import AggregateShare
    from maskedlark.releases.started_job import StartedJob

_DIGEST_BYTES: Final = 32
_MOST_COUNT: Final = (1 << 63) - 1
_MOST_NAME: Final = 200
_MOST_CAUSE: Final = 1_000
_Count: TypeAlias = Literal["tasks", "datasets", "open_jobs", "rounds_answered"]
_COUNTS: Final[tuple[_Count, ...]] = get_args(_Count)


@frozen
class HelperStatus:
    """A helper's identity and what it holds.

    Attributes:
        version: The helper's software.
        identity: Its name and long-term public keys.
        keys: Its HPKE keys, with a signature that is its own.
        software_digest: Of what computes, on every path: golden vectors, and versions of libraries.
        tasks: How many it has accepted; None, as all that follow, over TLS: a helper tells tenants nothing of
            each other.
        datasets: How many it has committed.
        open_jobs: Started and not closed.
        rounds_answered: Of all jobs.
        not_well: Why it refuses calls, if it says so, as on a ledger that was rolled back.
    """

    version: str
    identity: HelperIdentity
    keys: SignedKeyList
    software_digest: bytes
    tasks: int | None
    datasets: int | None
    open_jobs: int | None
    rounds_answered: int | None
    not_well: str = ""

    def why_not_well(self, address: str, now_s: float) -> str:
        """Return why the helper at this address is not well; empty if it is."""
        ended_at = self.keys.key_list.not_after
        if self.not_well or now_s <= ended_at:
            return self.not_well
        return (
            f"helper at {address} is not well: its list of HPKE keys ended at "
            f"{format_utc(ended_at)}, so browsers seal no reports to it: "
            "check both machines' clocks, and `lark-helper keys list` there"
        )


@frozen
class QueryAnswer:
    """A helper's answer to a query.

    Attributes:
        share: Its share of the sums.
        dataset_spent: Of the dataset by this helper's ledger: all jobs and queries, this one included; of
            open jobs also the rounds that are only reserved.
    """

    share: "AggregateShare" = field(repr=False)
    dataset_spent: "Epsilons"


class Replies:
    """Reads one helper's replies."""

    def __init__(self, peer: str) -> None:
        """Name the helper, by its address, in errors."""
        self._peer = peer

    def parse_status(self, reply: helper_pb2.StatusReply) -> HelperStatus:
        """Parse a status; the key list's signature is checked against the key in the same message.

        Raises:
            UnsupportedVersion: the helper does not implement this server's version of the protocol.
            JobRefused(BAD_ANSWER)
        """
        # First: what else a helper of another version says may have another form.
        check_spoken(reply.protocols, f"the helper at {self._peer}")
        try:
            identity = build(
                HelperIdentity,
                {"name": reply.name, "verify_key": reply.verify_key, "agreement_key": reply.agreement_key},
            )
            keys = decode(SignedKeyList, reply.key_list)
            keys.verify(identity.verify_key)
        except InvalidTask as error:
            raise self.bad(f"a wrong status: {error}") from None
        self._require_digest(reply.numerics_digest)
        counts = {name: getattr(reply, name) if reply.HasField(name) else None for name in _COUNTS}
        self.require(
            all(count is None or count <= _MOST_COUNT for count in counts.values()),
            "a count that no database holds",
        )
        # Both are shown on terminals, where what cannot be printed might move the cursor or hide lines
        for told in (reply.name, reply.version):
            self.require(told.isprintable() and len(told) <= _MOST_NAME, "a name that cannot be printed")
        return HelperStatus(
            version=reply.version,
            identity=identity,
            keys=keys,
            software_digest=reply.numerics_digest,
            not_well=(
                f"helper at {self._peer} is not well: {escape(reply.not_well[:_MOST_CAUSE])}"
                if reply.not_well
                else ""
            ),
            **counts,
        )

    def check_commit(self, reply: helper_pb2.CommitReply, *, dataset_id: bytes, size: int) -> None:
        """Check that what was committed is what was asked for."""
        self.require(
            reply.dataset_id == dataset_id and reply.size == size,
            "it committed a different dataset than requested",
        )

    def parse_started_job(self, reply: helper_pb2.StartJobReply) -> "StartedJob":
        """Parse the answer to a job."""
        from maskedlark.releases.started_job import StartedJob

        self.require(reply.path in ("exact", "general"), "an unknown gradient path")
        self._require_digest(reply.numerics_digest)
        self.require(reply.num_parameters > 0, "a model without parameters")
        self._require_amounts(reply.epsilon_spent, reply.collusion_epsilon_spent)
        return StartedJob(**{one.name: getattr(reply, one.name) for one in fields(StartedJob)})

    def parse_spent(self, reply: helper_pb2.QueryReply) -> "Epsilons":
        """Parse the first part of the answer to a query."""
        from maskedlark.privacy.accounting import Epsilons

        self.require(reply.WhichOneof("part") == "spent", "no spent budget")
        self._require_amounts(reply.spent.epsilon, reply.spent.collusion_epsilon)
        return Epsilons(ad_server=reply.spent.epsilon, colluding=reply.spent.collusion_epsilon)

    def _require_digest(self, digest: bytes) -> None:
        self.require(len(digest) == _DIGEST_BYTES, "a numerics digest of the wrong length")

    def _require_amounts(self, *epsilons: float) -> None:
        is_valid = all(one >= 0 and not math.isnan(one) for one in epsilons)
        self.require(is_valid, "a spent budget that is not a valid amount")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wrap code that reads an answer in the form that helpers read requests in too.

        Its refusals are of the answer, not of the request.
        """
        try:
            yield
        except JobRefused as error:
            raise self.bad(f"an invalid reply: {error}") from None

    def require(self, condition: bool, what: str) -> None:
        """Refuse an answer that breaks the contract."""
        if not condition:
            raise self.bad(what)

    def bad(self, what: str) -> JobRefused:
        """Build the error for a malformed answer."""
        return bad_answer(self._peer, what)


class PreparedReplies:
    """The replies of one preparation as they come: one for each chunk, then the totals."""

    def __init__(self, replies: Replies) -> None:
        self._of = replies
        self._is_admitted: list[NDArray[np.bool_]] = []
        self._view_tags: list[NDArray[np.uint8]] = []
        self._totals: helper_pb2.PrepareReply.Totals | None = None

    def take(self, reply: helper_pb2.PrepareReply, sizes: Sequence[int]) -> int:
        """Read one reply; how many reports it answers for."""
        self._of.require(self._totals is None, "more replies after the totals")
        if reply.HasField("totals"):
            self._totals = reply.totals
            return 0
        position = len(self._is_admitted)
        self._of.require(position < len(sizes), "more replies than there were chunks")
        flags = np.frombuffer(reply.is_admitted, np.uint8)
        self._of.require(
            len(flags) == sizes[position] and bool((flags <= 1).all()),
            "a number of flags that differs from the number of reports",
        )
        self._of.require(
            len(reply.view_tags) == VIEW_TAG_BYTES * len(flags),
            "a number of view tags that differs from the number of reports",
        )
        self._is_admitted.append(flags.astype(np.bool_))
        self._view_tags.append(np.frombuffer(reply.view_tags, np.uint8).reshape(-1, VIEW_TAG_BYTES))
        return len(flags)

    def combine(self, sizes: Sequence[int]) -> AdmittedSet:
        """Combine all chunks if they are complete and agree with the totals."""
        totals = self._totals
        if totals is None or len(self._is_admitted) != len(sizes):
            raise self._of.bad("not one reply for each chunk and then the totals")
        is_admitted = np.concatenate([np.empty(0, np.bool_), *self._is_admitted])
        dropped = self._parse_dropped(totals)
        counted = (totals.received, totals.admitted, dropped.total())
        num_admitted = int(is_admitted.sum())
        expected = (len(is_admitted), num_admitted, len(is_admitted) - num_admitted)
        self._of.require(
            counted == expected,
            f"the totals {counted} of received, admitted and dropped reports; expected {expected}",
        )
        tags = np.concatenate([np.empty((0, VIEW_TAG_BYTES), np.uint8), *self._view_tags])
        return AdmittedSet(is_admitted=is_admitted, view_tags=tags, dropped=dropped)

    def _parse_dropped(self, totals: helper_pb2.PrepareReply.Totals) -> Counter[ReportReason]:
        try:
            return Counter({ReportReason(reason): int(count) for reason, count in totals.dropped.items()})
        except ValueError:
            raise self._of.bad("an unknown reason for dropping reports") from None


def bad_answer(peer: str, what: str) -> JobRefused:
    """Build the error for a malformed answer."""
    return JobRefused(JobReason.BAD_ANSWER, f"the helper at {peer} answered with {what}")
