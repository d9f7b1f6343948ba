"""A batch of reports as it comes over HTTP, read one report at a time: it takes little more memory than its bytes, whatever they are.

Parsed as one message, eight megabytes of empty reports would be four million objects.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.task import REPORT_ID_BYTES
from protos import report_pb2

LEAST_REPORT_BYTES: Final = 4 * REPORT_ID_BYTES
"""No report is shorter: its ids alone take 52 bytes, and each of two shares an encapsulated key."""
_REPORTS: Final = (report_pb2.ReportBatch.REPORTS_FIELD_NUMBER << 3) | 2
"""The key of a report within a batch: its field, as length and bytes."""
_MAX_VARINT_BYTES: Final = 10


def reports_in(body: bytes) -> Iterator[report_pb2.Report]:
    """The reports of an encoded `ReportBatch`, parsed as they are asked for.

    Raises:
        ReportRejected(MALFORMED): at once, and no report is given: the bytes are no batch, hold another field or a report that does not
            parse, or more reports than fit into them.
    """
    spans = _spans(body)
    try:
        for start, end in spans:
            report_pb2.Report.FromString(body[start:end])
    except DecodeError:
        raise _malformed() from None
    return (report_pb2.Report.FromString(body[start:end]) for start, end in spans)


def _spans(body: bytes) -> list[tuple[int, int]]:
    """Where each report begins and ends."""
    spans: list[tuple[int, int]] = []
    most, place = len(body) // LEAST_REPORT_BYTES + 1, 0
    while place < len(body):
        key, place = _varint(body, place)
        length, place = _varint(body, place)
        if key != _REPORTS or length > len(body) - place or len(spans) == most:
            raise _malformed()
        spans.append((place, place + length))
        place += length
    return spans


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """The number that begins at a place, and the place after it."""
    number = 0
    for index, byte in enumerate(body[place : place + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, place + index + 1
    raise _malformed()


def _malformed() -> ReportRejected:
    return ReportRejected(ReportReason.MALFORMED, "not a batch of reports; none was stored")
