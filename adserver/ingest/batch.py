"""A batch of reports as it comes over HTTP or gRPC, parsed only if it can be one.

Whatever it is, it takes a few times its own bytes at most.

Eight megabytes of empty reports would be four million messages.
"""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.reports.task import REPORT_ID_BYTES
from protos import report_pb2

LEAST_REPORT_BYTES: Final = 4 * REPORT_ID_BYTES
"""No report is shorter: its ids alone take 52 bytes, and each of two shares an encapsulated key."""
# The key of a report within a batch: its field, as length and bytes; it takes one byte
_REPORTS: Final = (report_pb2.ReportBatch.REPORTS_FIELD_NUMBER << 3) | 2
_MAX_VARINT_BYTES: Final = 10


def reports_in(body: bytes) -> Sequence[report_pb2.Report]:
    """Parse the reports of an encoded `ReportBatch`.

    Raises:
        ReportRejected(MALFORMED): the bytes are no batch, hold another field, or more reports than fit into
        them.
    """
    _check_count(body)
    try:
        return report_pb2.ReportBatch.FromString(body).reports
    except DecodeError:
        raise _reject_malformed() from None


def _check_count(body: bytes) -> None:
    """Go from report to report, without a look into them; protobuf refuses a last one that is cut off."""
    left, place, end = len(body) // LEAST_REPORT_BYTES + 1, 0, len(body)
    while place < end:
        if body[place] != _REPORTS or not left:
            raise _reject_malformed()
        length, place = _varint(body, place + 1)
        place += length
        left -= 1


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """Read the number that begins at a place, and return the place after it."""
    number = 0
    for index, byte in enumerate(body[place : place + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, place + index + 1
    raise _reject_malformed()


def _reject_malformed() -> ReportRejected:
    return ReportRejected(ReportReason.MALFORMED, "the body is not a batch of reports: none was stored")
