"""What a collector gets: the registry's families, and calls by the names of the semantic conventions."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import grpc
import pytest
from opentelemetry import metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, Counter, Gauge

from maskedlark.errors import JobReason, JobRefused
from maskedlark.observability import call_metrics, otlp_metrics, tracing
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.faults import answering, calling
from maskedlark.rpc.transport import RenewedChannel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.patience import HANGS_S


class Refusing(helper_pb2_grpc.HelperServicer):
    def GetStatus(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: N802 # gRPC's name
        with answering(context):
            raise JobRefused(JobReason.UNAUTHORIZED, "a long story")


@pytest.fixture(autouse=True)
def _no_global_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry lets a process set its provider once."""
    monkeypatch.setattr(metrics, "set_meter_provider", lambda _provider: None)


def points(reader: InMemoryMetricReader) -> Iterator[tuple[str, dict[str, Any], Any]]:
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        assert dict(resource.resource.attributes) == {"service.name": "helper"}  # nothing of this machine
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield metric.name, dict(point.attributes or {}), point


def test_counters_and_gauges_are_sent_under_their_own_names() -> None:
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    things = Counter("things", "Things.", ("kind",), registry=registry)
    things.labels("a").inc(3)
    Gauge("held", "Held.", registry=registry).set(7)
    with otlp_metrics._reading("helper", registry, reader):
        found = {(name, *attributes.values()): point.value for name, attributes, point in points(reader)}
    assert found == {("things", "a"): 3, ("held",): 7}


def test_calls_are_sent_by_the_names_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], tracing._provider_of("helper", None).resource)
    meter = provider.get_meter("maskedlark")
    for module, name in ((call_metrics, "rpc.server.call.duration"), (tracing, "rpc.client.call.duration")):
        monkeypatch.setattr(module, "_CALL_SECONDS", meter.create_histogram(name, "s"))
    watched = WatchedServer(ServerSettings(listen="127.0.0.1:0", tls=None, threads=2), CollectorRegistry())
    helper_pb2_grpc.add_HelperServicer_to_server(Refusing(), watched.server)
    watched.start()
    address = f"127.0.0.1:{watched.port}"
    channel = RenewedChannel(address, None, (tracing.ClientTracing(address),))
    with pytest.raises(JobRefused), calling("helper"):
        helper_pb2_grpc.HelperStub(channel.current()).GetStatus(pb.StatusRequest(), timeout=HANGS_S)
    channel.close()
    watched.drain(1)
    refused = {
        "rpc.system.name": "grpc",
        "rpc.method": "maskedlark.v1.Helper/GetStatus",
        "rpc.response.status_code": "FAILED_PRECONDITION",
        "error.type": "FAILED_PRECONDITION",
    }
    found = {name: (attributes, point.count) for name, attributes, point in points(reader)}
    assert found == {
        "rpc.server.call.duration": (refused, 1),
        "rpc.client.call.duration": (
            refused | {"server.address": "127.0.0.1", "server.port": watched.port},
            1,
        ),
    }
    provider.shutdown()


def test_a_collector_gets_them_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = list[bytes]()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    registry = CollectorRegistry()
    Gauge("held", "Held.", registry=registry).set(7)
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = Thread(target=collector.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        try:
            with otlp_metrics.sending_metrics("helper", registry):
                pass
        finally:
            collector.shutdown()
            thread.join()
    sent = ExportMetricsServiceRequest.FromString(bodies[-1])
    assert [one.name for one in sent.resource_metrics[0].scope_metrics[0].metrics] == ["held"]
