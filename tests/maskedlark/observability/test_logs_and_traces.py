import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from threading import Event, Thread

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from maskedlark.errors import JobReason, JobRefused
from maskedlark.observability import tracing
from maskedlark.observability.logs import (
    BURST_LINES,
    REFILL_S,
    LogFormat,
    _JsonFormatter,
    _LimitedHandler,
    configure_logging,
)
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.observability.traces import Traces
from maskedlark.rpc.call_details import _CallDetails
from maskedlark.rpc.faults import answering, calling
from maskedlark.rpc.transport import RenewedChannel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.patience import HANGS_S


def line(message: str, *, error: bool = False) -> dict[str, str]:
    record = logging.LogRecord(
        "helper.jobs", logging.WARNING, __file__, 1, message, (), sys.exc_info() if error else None
    )
    parsed: dict[str, str] = json.loads(_JsonFormatter().format(record))
    return parsed


def test_a_log_line_is_one_json_object() -> None:
    parsed = line('said "so"\nand so')
    assert (parsed["message"], parsed["level"], parsed["logger"]) == (
        'said "so"\nand so',
        "warning",
        "helper.jobs",
    )
    assert parsed["time"].endswith("+00:00")
    try:
        raise KeyError("lost")
    except KeyError:
        assert "KeyError: 'lost'" in line("failed", error=True)["error"]


@pytest.mark.filterwarnings("always:a warning")
@pytest.mark.parametrize("log_format", LogFormat)
def test_the_process_log_takes_the_chosen_form(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    logging.captureWarnings(False)  # pytest has put its own capture over what another test may have left
    before, level = root.handlers[:], root.level
    try:
        root.handlers = []
        configure_logging(log_format)
        logging.getLogger("here").info("hello")
        warnings.warn("a warning", stacklevel=1)
        lines = capsys.readouterr().err.splitlines()
        assert "a warning" in lines[1]
        assert {text.startswith("{") for text in lines} == {log_format is LogFormat.JSON}
    finally:
        logging.captureWarnings(False)
        root.handlers, root.level = before, level


def test_a_client_cannot_make_the_log_grow_without_end() -> None:
    now_s, written = 0.0, io.StringIO()
    handler = _LimitedHandler(written, lambda: now_s)
    log = logging.Logger("uvicorn.error")
    log.addHandler(handler)

    def attack(times: int) -> list[str]:
        for number in range(times):
            log.warning("Invalid HTTP request received: %d", number)
        return written.getvalue().splitlines()

    assert len(attack(1_000)) == BURST_LINES
    log.warning("another statement writes its own lines")
    now_s += 2 * REFILL_S
    *_, dropped, first, second = attack(100)
    assert dropped == f"dropped {1_000 - BURST_LINES} lines like the next one"
    assert (first, second) == ("Invalid HTTP request received: 0", "Invalid HTTP request received: 1")
    now_s += 1_000 * REFILL_S
    assert len(attack(1_000)) == BURST_LINES + 1 + 3 + 1 + BURST_LINES
    before = len(written.getvalue().splitlines())
    for _ in range(1_000):
        log.info("what the server itself does")
    assert len(written.getvalue().splitlines()) == before + 1_000


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans are kept here; OpenTelemetry lets a process set its provider once, so the tracer itself is
    replaced."""
    kept = InMemorySpanExporter()
    provider = tracing._provider_of("test", kept)
    monkeypatch.setattr(tracing, "_TRACER", provider.get_tracer("maskedlark"))
    yield kept
    provider.shutdown()


class Refusing(helper_pb2_grpc.HelperServicer):
    """Answers status, and refuses a task with a message that a trace must not show."""

    def GetStatus(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: N802 # gRPC's name
        return pb.StatusReply(
            name=json.loads(_JsonFormatter().format(logging.makeLogRecord({"msg": ""})))["trace_id"]
        )

    def RegisterTask(  # noqa: N802 # gRPC's name
        self, request: pb.RegisterTaskRequest, context: grpc.ServicerContext
    ) -> pb.RegisterTaskReply:
        with answering(context):
            raise JobRefused(JobReason.TASK_REFUSED, "a long story")


@pytest.fixture
def stub() -> Iterator[helper_pb2_grpc.HelperStub]:
    watched = WatchedServer(ServerSettings(listen="127.0.0.1:0", tls=None, threads=2), CollectorRegistry())
    helper_pb2_grpc.add_HelperServicer_to_server(Refusing(), watched.server)
    watched.start()
    channel = RenewedChannel(
        f"127.0.0.1:{watched.port}", None, (tracing.ClientTracing(f"127.0.0.1:{watched.port}"),)
    )
    yield helper_pb2_grpc.HelperStub(channel.current())
    channel.close()
    watched.drain(1)


def spans(exporter: InMemorySpanExporter, count: int) -> list[ReadableSpan]:
    """All spans, once there are so many: the server's ends a moment after the client's."""
    until = time.monotonic() + HANGS_S
    while len(found := list(exporter.get_finished_spans())) < count and time.monotonic() < until:
        time.sleep(0.02)
    assert len(found) == count
    return found


def test_one_trace_runs_through_both_services_and_their_logs(
    exporter: InMemorySpanExporter, stub: helper_pb2_grpc.HelperStub
) -> None:
    with tracing.span("job", job_id="ab"):
        logged = stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name
    job, client, server = sorted(spans(exporter, 3), key=lambda one: one.start_time or 0)
    assert (job.name, client.name, server.name) == (
        "job",
        "maskedlark.v1.Helper/GetStatus",
        "maskedlark.v1.Helper/GetStatus",
    )
    assert server.parent is not None
    assert client.parent is not None
    assert server.parent.span_id == client.context.span_id
    assert client.parent.span_id == job.context.span_id
    assert {one.context.trace_id for one in (job, client, server)} == {int(logged, 16)}


def test_a_refusal_is_traced_by_its_code_and_without_its_message(
    exporter: InMemorySpanExporter, stub: helper_pb2_grpc.HelperStub
) -> None:
    with pytest.raises(JobRefused), tracing.span("job"), calling("helper"):
        stub.RegisterTask(pb.RegisterTaskRequest(), timeout=HANGS_S)
    found = spans(exporter, 3)
    call = {
        "rpc.system.name": "grpc",
        "rpc.method": "maskedlark.v1.Helper/RegisterTask",
        "rpc.response.status_code": "FAILED_PRECONDITION",
        "error.type": "FAILED_PRECONDITION",
    }
    attributes = [dict(one.attributes or {}) for one in found]
    assert call | {"refusal.kind": "JobRefused", "refusal.reason": "task_refused"} in attributes
    assert any(call.items() | {("server.address", "127.0.0.1")} <= of.items() for of in attributes)
    assert "a long story" not in "".join(one.to_json() for one in found)


class WaitedFor(tracing._Calls):
    """Tells that somebody waits."""

    def __init__(self, waits: Event) -> None:
        super().__init__()
        self._waits = waits

    def wait_until_ended(self) -> None:
        self._waits.set()
        super().wait_until_ended()


class OpenCall:
    """A call whose answer is there, and whose callback gRPC has not run yet."""

    def add_done_callback(self, callback: Callable[["OpenCall"], None]) -> None:
        self.done = callback

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


def test_the_last_calls_span_is_kept_before_a_process_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call, waits = OpenCall(), Event()
    opened = tracing._provider_of("a command", None)
    monkeypatch.setattr(tracing, "_provider_of", lambda _service, _exporter: opened)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _provider: None)
    monkeypatch.setattr(tracing, "_TRACER", opened.get_tracer("maskedlark"))
    monkeypatch.setattr(tracing, "_calls", WaitedFor(waits))
    details = _CallDetails("/maskedlark.v1.Helper/RunQuery", None, (), None, None, None)
    ending = Thread(target=lambda: waits.wait(HANGS_S) and call.done(call))
    ending.start()
    try:
        with tracing.tracing("a command", Traces.CONSOLE):
            tracing.ClientTracing("h:1").intercept_unary_unary(lambda _details, _request: call, details, b"")
    finally:
        waits.set()
        ending.join()
    assert '"name": "maskedlark.v1.Helper/RunQuery"' in capsys.readouterr().err
