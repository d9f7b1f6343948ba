"""Messages to domain values and back, and long byte strings in chunks.

Hostile messages raise typed errors here.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf.message import DecodeError

from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.reports.upload import Report, SealedShare
from protos import report_pb2

CHUNK_BYTES: Final = 1 << 20
MAX_REPORT_BYTES: Final = 1 << 20


def chunks(encoded: bytes, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Split into consecutive pieces of at most `size` bytes; one empty piece for no bytes."""
    view = memoryview(encoded)  # whose slices copy nothing
    for start in range(0, max(len(view), 1), size):
        yield bytes(view[start : start + size])


def join(pieces: Iterable[bytes], *, limit: int, what: str) -> bytes:
    """Join the pieces.

    Raises:
        JobRefused(TOO_LARGE): as soon as they pass `limit` bytes.
        JobRefused(MALFORMED): a piece is empty: a stream of such would never end.
    """
    joined = bytearray()
    for number, piece in enumerate(pieces):
        if number and not piece:  # nothing at all is sent as one empty piece
            raise JobRefused(JobReason.MALFORMED, f"a piece of {what} is empty")
        if len(joined) + len(piece) > limit:
            raise JobRefused(JobReason.TOO_LARGE, f"{what} is over the limit of {limit} bytes")
        joined += piece
    return bytes(joined)


def report_to_message(report: Report) -> report_pb2.Report:
    """Encode a report's wire form."""
    message = report_pb2.Report()
    write_report(report, message)
    return message


def write_report(report: Report, message: report_pb2.Report) -> None:
    """Write a report into an empty message, which may stand in a batch: nothing is copied into it later."""
    message.task_id = report.task_id
    message.report_id = report.report_id
    message.time_bucket = report.time_bucket
    if report.round_id:
        message.round_id = report.round_id
    share_0, share_1 = report.shares
    part = message.share_0
    part.key_id, part.ciphertext = share_0.key_id, share_0.ciphertext
    part = message.share_1
    part.key_id, part.ciphertext = share_1.key_id, share_1.ciphertext


def report_from_message(message: report_pb2.Report) -> Report:
    """Decode a report; sizes are checked by `maskedlark.reports.upload.ReportCheck`.

    Raises:
        ReportRejected(MALFORMED): a share is missing.
    """
    if not (message.HasField("share_0") and message.HasField("share_1")):
        raise ReportRejected(ReportReason.MALFORMED, "a report must have two shares")
    return Report(
        task_id=message.task_id,
        report_id=message.report_id,
        time_bucket=message.time_bucket,
        shares=(_share_from_message(message.share_0), _share_from_message(message.share_1)),
        round_id=message.round_id,
    )


def encode_report(report: Report) -> bytes:
    """Encode one binary report, as an HTTP body."""
    return report_to_message(report).SerializeToString()


def decode_report(encoded: bytes) -> Report:
    """Parse one binary report.

    Raises:
        ReportRejected(MALFORMED, WRONG_LENGTH)
    """
    if len(encoded) > MAX_REPORT_BYTES:
        raise ReportRejected(
            ReportReason.WRONG_LENGTH, f"the report is over the limit of {MAX_REPORT_BYTES} bytes"
        )
    try:
        return report_from_message(report_pb2.Report.FromString(encoded))
    except DecodeError:
        raise ReportRejected(ReportReason.MALFORMED, "not a report message") from None


def _share_from_message(message: report_pb2.SealedShare) -> SealedShare:
    return SealedShare(key_id=message.key_id, ciphertext=message.ciphertext)
