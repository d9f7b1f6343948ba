"""Sealed reports as they travel: encoded once, in the process that sealed them."""

from collections.abc import Iterator, Sequence
from typing import Final

from maskedlark.frozen import frozen
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import write_report
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

    @classmethod
    def of(cls, reports: Sequence[Report]) -> "SealedBatch":
        """Encode reports for their way."""
        return cls(reports=len(reports), messages=tuple(_messages(reports)))


def _messages(reports: Sequence[Report]) -> Iterator[bytes]:
    # Encodings of one repeated field concatenate (protobuf), so gRPC streams the parts and HTTP sends them
    # joined.
    part, part_bytes = report_pb2.ReportBatch(), 0
    for report in reports:
        size = sum(len(share.ciphertext) for share in report.shares)
        if part.reports and part_bytes + size > _MESSAGE_BYTES:
            yield part.SerializeToString()
            part, part_bytes = report_pb2.ReportBatch(), 0
        write_report(report, part.reports.add())
        part_bytes += size
    if part.reports:
        yield part.SerializeToString()
