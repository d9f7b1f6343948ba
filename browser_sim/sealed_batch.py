"""Sealed reports as they travel: encoded once, in the process that sealed them."""

from collections.abc import Iterator, Sequence
from typing import Final

from maskedlark.frozen import frozen
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import report_to_message
from protos import report_pb2

_MESSAGE_BYTES: Final = 128 << 10


@frozen
class SealedBatch:
    """Reports that are sent together.

    Attributes:
        reports: How many.
        messages: Encoded `ReportBatch` messages of about 128 KiB, or of one larger report. Joined, they are
            one `ReportBatch` of all reports.
    """

    reports: int
    messages: tuple[bytes, ...]


def sealed_batch(reports: Sequence[Report]) -> SealedBatch:
    """Encode reports for their way."""
    return SealedBatch(reports=len(reports), messages=tuple(_messages(reports)))


def _messages(reports: Sequence[Report]) -> Iterator[bytes]:
    part, part_bytes = list[report_pb2.Report](), 0
    for report in reports:
        size = sum(len(share.ciphertext) for share in report.shares)
        if part and part_bytes + size > _MESSAGE_BYTES:
            yield _encoded(part)
            part, part_bytes = [], 0
        part.append(report_to_message(report))
        part_bytes += size
    if part:
        yield _encoded(part)


def _encoded(part: Sequence[report_pb2.Report]) -> bytes:
    return report_pb2.ReportBatch(reports=part).SerializeToString()
