"""The intake over gRPC: for proxies of browsers and other senders of many reports at a time."""

from collections.abc import Iterator

import grpc

from adserver.ingest.batch import reports_in
from adserver.ingest.intake import Intake, IntakeCounts
from maskedlark.rpc.faults import answering
from maskedlark.runtime.database import database_at_hand
from protos import ingest_pb2, ingest_pb2_grpc, report_pb2


class IngestService(ingest_pb2_grpc.IngestServicer):
    """The RPC bodies."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def Submit(  # noqa: N802 the name is the wire's
        self, request_iterator: Iterator[report_pb2.Report], context: grpc.ServicerContext
    ) -> ingest_pb2.SubmitReply:
        """Take a stream of reports; answer with what became of them."""
        with answering(context), database_at_hand("the ad server"):
            counts = self._intake.take_all(request_iterator)
        return _reply(counts)

    def SubmitBatches(  # noqa: N802 the name is the wire's
        self, request_iterator: Iterator[ingest_pb2.EncodedBatch], context: grpc.ServicerContext
    ) -> ingest_pb2.SubmitReply:
        """Take a stream of batches; answer with what became of their reports."""
        with answering(context), database_at_hand("the ad server"):
            reports = (report for batch in request_iterator for report in reports_in(batch.reports))
            counts = self._intake.take_all(reports)
        return _reply(counts)


def _reply(counts: IntakeCounts) -> ingest_pb2.SubmitReply:
    return ingest_pb2.SubmitReply(
        accepted=counts.accepted, duplicates=counts.duplicates, rejected=counts.by_reason()
    )
