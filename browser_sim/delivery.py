"""Step 4: upload sealed reports to the ad server, over gRPC or HTTP.

An ad server that is away for a moment is asked again.

A batch whose answer got lost is sent again as it is: the ad server stores each report id once and counts the
second as a duplicate, so nothing is lost and nothing counts twice.
"""

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from pydantic import BaseModel, NonNegativeInt, ValidationError

from browser_sim.endpoint import (
    REQUEST_TIMEOUT_S,
    TRUST_ADVICE,
    Protection,
    is_url,
    read_limited,
    without_credentials,
)
from browser_sim.sealed_batch import SealedBatch
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, ReportReason
from maskedlark.rpc.certificate_faults import raise_if_rejected
from maskedlark.rpc.faults import calling, retry_hint_s
from maskedlark.rpc.transport import make_channel
from protos import ingest_pb2, ingest_pb2_grpc

if TYPE_CHECKING:
    import httpx

BATCH_PATH: Final = "/v1/reports/batch"
MEDIA_TYPE: Final = "application/x-protobuf"
_ATTEMPTS: Final = 8
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 8.0
_MAX_REPLY_BYTES: Final = 64 << 10


@dataclass(slots=True, kw_only=True)
class Delivered:
    """What the ad server answered, added up.

    Attributes:
        accepted: Stored now.
        duplicates: Stored before: sent again after a lost answer, or by an earlier run with the same seed.
        rejected: Not stored, by reason (the names of ReportReason).
        resent: Batches sent more than once.
    """

    accepted: int = 0
    duplicates: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    resent: int = 0

    @property
    def delivered(self) -> int:
        """Reports that the ad server holds."""
        return self.accepted + self.duplicates

    def add(self, other: "Delivered") -> None:
        """Count another part in."""
        self.accepted += other.accepted
        self.duplicates += other.duplicates
        self.rejected.update(other.rejected)
        self.resent += other.resent


class Sender(ABC):
    """A connection to the ad server's intake; use it in a `with`."""

    def __init__(self) -> None:
        self._opened = ExitStack()

    @abstractmethod
    def send(self, batch: SealedBatch) -> Delivered:
        """Upload one batch; HelperUnavailable if it may be sent again, another error if not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


class _GrpcSender(Sender):
    """Uploads a batch as one client-streaming call, a part of it in each message."""

    def __init__(self, address: str, protection: Protection) -> None:
        """Connect to HOST:PORT, or raise InvalidTask if the way is not protected."""
        super().__init__()
        protection.check(address)
        self._address = address
        self._stub = ingest_pb2_grpc.IngestStub(
            self._opened.enter_context(make_channel(address, protection.tls))
        )

    def send(self, batch: SealedBatch) -> Delivered:
        """Upload one batch."""
        with calling(f"the ad server at {self._address}"):
            messages = (ingest_pb2.EncodedBatch(reports=encoded) for encoded in batch.messages)
            reply = self._stub.SubmitBatches(messages, timeout=REQUEST_TIMEOUT_S)
        return _count_delivered(reply)


class _HttpSender(Sender):
    """Uploads a batch as one POST."""

    def __init__(self, url: str, protection: Protection) -> None:
        """Connect to an http(s) URL, or raise InvalidTask if the way is not protected."""
        super().__init__()
        self._url = url.rstrip("/") + BATCH_PATH
        self._client = self._opened.enter_context(protection.http_client(url))

    def send(self, batch: SealedBatch) -> Delivered:
        """Upload one batch."""
        import httpx

        body, headers = b"".join(batch.messages), {"content-type": MEDIA_TYPE}
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                _check_status(response)
                reply = read_limited(response, _MAX_REPLY_BYTES)
        except httpx.HTTPError as error:
            # A URL may hold a password, and errors are printed.
            shown = without_credentials(self._url)
            raise_if_rejected(error, shown, TRUST_ADVICE)
            raise HelperUnavailable(f"{shown} does not answer: {type(error).__name__}") from None
        return _parse_reply(reply)


def connect(destination: str, protection: Protection) -> Sender:
    """Return the sender for an http(s) URL or a gRPC HOST:PORT."""
    return (
        _HttpSender(destination, protection) if is_url(destination) else _GrpcSender(destination, protection)
    )


def deliver(
    sender: Sender,
    batches: Iterable[SealedBatch],
    *,
    on_progress: Callable[[int], None] = lambda _: None,
    pause: Callable[[float], None] = time.sleep,
) -> Delivered:
    """Send all batches in order.

    Args:
        sender: The connection.
        batches: Sealed reports.
        on_progress: Called with the number of reports answered for, after each batch.
        pause: Waits for so many seconds between attempts.

    Raises:
        HelperUnavailable: the ad server stayed away for all attempts of one batch (about half a minute,
            besides the time each attempt takes, and what an ad server that is full asks for).
        JobRefused: the ad server refused a whole batch.
        InvalidSetting: its certificate is not accepted, over HTTPS.
    """
    total = Delivered()
    for batch in batches:
        total.add(_send_persistently(sender, batch, pause))
        on_progress(batch.reports)
    return total


def _send_persistently(sender: Sender, batch: SealedBatch, pause: Callable[[float], None]) -> Delivered:
    for attempt in range(_ATTEMPTS - 1):
        try:
            delivered = sender.send(batch)
        except HelperUnavailable as error:
            longest_s = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
            jittered_s = random.uniform(longest_s / 2, longest_s)  # noqa: S311  browsers that were turned away must not come back as one
            pause(max(jittered_s, error.retry_after_s or 0.0))
        else:
            delivered.resent = int(attempt > 0)
            return delivered
    # The last attempt: its error is the caller's.
    delivered = sender.send(batch)
    delivered.resent = 1
    return delivered


def _check_status(response: "httpx.Response") -> None:
    status = response.status_code
    if status == 200:
        return
    # Timed out, too early, too many requests: as passing as an error of the server.
    if status in (408, 425, 429) or status >= 500:
        raise HelperUnavailable(
            f"the ad server answered {status}",
            retry_after_s=retry_hint_s(response.headers.get("retry-after", "")),
        )
    # Sent again, the same batch would be refused again.
    reason = {401: JobReason.UNAUTHORIZED, 403: JobReason.UNAUTHORIZED, 413: JobReason.TOO_LARGE}.get(
        status, JobReason.MALFORMED
    )
    raise JobRefused(reason, f"the ad server answered {status} to a batch of reports")


def _parse_reply(reply: bytes | None) -> Delivered:
    """Parse the counts in the ad server's JSON."""
    try:
        return _count_delivered(_Counts.model_validate_json(reply or b""))
    except ValidationError:
        raise JobRefused(
            JobReason.MALFORMED, "the ad server's answer to a batch is malformed: expected counts of reports"
        ) from None


class _Counts(BaseModel, strict=True):
    """The ad server's answer to a batch over HTTP."""

    accepted: NonNegativeInt
    duplicates: NonNegativeInt
    rejected: dict[str, NonNegativeInt]


def _count_delivered(counts: _Counts | ingest_pb2.SubmitReply) -> Delivered:
    """Count reasons of a newer ad server as `other`."""
    known = {reason.value for reason in ReportReason}
    by_reason: Counter[str] = Counter()
    for reason, count in counts.rejected.items():
        # Counted names are printed: an ad server's own words never get there.
        by_reason[reason if reason in known else "other"] += count
    return Delivered(accepted=counts.accepted, duplicates=counts.duplicates, rejected=by_reason)
