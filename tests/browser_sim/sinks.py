"""Ad servers for tests.

A real gRPC intake and a real HTTP intake that keep what they get, and can be told to fail.
"""

import json
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from browser_sim.delivery import BATCH_PATH
from browser_sim.sealed_batch import SealedBatch
from maskedlark.errors import HelperUnavailable, ReportReason
from maskedlark.reports.upload import Report
from maskedlark.rpc.faults import answering
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.wire import report_from_message
from protos import ingest_pb2, ingest_pb2_grpc, report_pb2
from tests.grpc_server import grpc_server
from tests.serving import serving


@dataclass
class Intake:
    """Keeps reports by id; rejects the ids that it is told to, and loses its next answers when told to."""

    reports: dict[bytes, Report] = field(default_factory=dict)
    order: list[Report] = field(default_factory=list)
    lost_answers: int = 0
    reject_every: int = 0

    def take(self, reports: Sequence[Report]) -> ingest_pb2.SubmitReply:
        reply = ingest_pb2.SubmitReply()
        for place, report in enumerate(reports, start=1):
            if self.reject_every and place % self.reject_every == 0:
                reply.rejected[ReportReason.OUTSIDE_TASK_PERIOD.value] += 1
            elif report.report_id in self.reports:
                reply.duplicates += 1
            else:
                self.reports[report.report_id] = report
                self.order.append(report)
                reply.accepted += 1
        if self.lost_answers:
            self.lost_answers -= 1
            raise HelperUnavailable("the answer is lost after the reports are stored")
        return reply


def reports_of(batches: Iterable[SealedBatch]) -> list[Report]:
    """The reports of batches as they would arrive, in order."""
    encoded = b"".join(message for batch in batches for message in batch.messages)
    return [report_from_message(one) for one in report_pb2.ReportBatch.FromString(encoded).reports]


class _Servicer(ingest_pb2_grpc.IngestServicer):
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def SubmitBatches(  # noqa: N802 (gRPC's name)
        self, request_iterator: Iterator[ingest_pb2.EncodedBatch], context: grpc.ServicerContext
    ) -> ingest_pb2.SubmitReply:
        with answering(context):
            batches = [report_pb2.ReportBatch.FromString(message.reports) for message in request_iterator]
            return self._intake.take([report_from_message(one) for batch in batches for one in batch.reports])
        raise AssertionError


@contextmanager
def grpc_sink(intake: Intake, *, tls: TlsFiles | None = None) -> Iterator[str]:
    """The address of a gRPC intake."""
    with grpc_server(
        partial(ingest_pb2_grpc.add_IngestServicer_to_server, _Servicer(intake)), tls=tls, threads=2
    ) as address:
        yield address


@contextmanager
def http_sink(
    intake: Intake | None = None,
    files: dict[str, bytes] | None = None,
    *,
    status: int | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """The URL of an HTTP intake and file host; a given `status` is its answer to every batch."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            content = (files or {}).get(self.path)
            self._answer(404 if content is None else 200, content or b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path != BATCH_PATH or status is not None:
                self._answer(status or 404, b"not counts")
                return
            assert intake is not None
            try:
                reply = intake.take(
                    [report_from_message(one) for one in report_pb2.ReportBatch.FromString(body).reports]
                )
            except HelperUnavailable:
                self._answer(503, b"")
                return
            counts = {
                "accepted": reply.accepted,
                "duplicates": reply.duplicates,
                "rejected": dict(reply.rejected),
            }
            self._answer(200, json.dumps(counts).encode())

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # clients that hang up are part of the tests

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
