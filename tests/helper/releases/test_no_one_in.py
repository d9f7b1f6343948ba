"""Whoever should not get into a helper does not, is counted, and does not keep others from being served."""

import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy.exc import OperationalError

from helper.ledger.audit_report import AuditReport
from helper.serving.metrics import HelperMetrics
from helper.serving.service import HelperService
from maskedlark import canonical
from maskedlark.audit_log import Actor, ActorKind, AuditAct
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.model.limits import HELPER_PARAMETERS, Limits
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.faults import calling
from maskedlark.rpc.stream_timeouts import Patience
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import MAX_MESSAGE_BYTES, TrustOnly, make_channel
from maskedlark.rpc.trust import sha256_of
from maskedlark.rpc.wire import report_to_message
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc, ingest_pb2_grpc
from tests.bad_frames import check_that_it_ends
from tests.builders import shares_for
from tests.helper.parties import Scene
from tests.helper.serving.test_helper_service import HANDLE, chunk_message
from tests.patience import HANGS_S, connect
from tests.refusals import refused

IDLE_S = 0.4


@dataclass(frozen=True, kw_only=True)
class Door:
    """One helper behind TLS, what its operator sees, and the files of the ad server that it trusts."""

    scene: Scene
    port: int
    metrics: HelperMetrics
    helper: TlsFiles
    ours: TlsFiles
    others: TlsFiles

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def register(self, tls: TlsFiles | TrustOnly | None) -> bytes:
        with make_channel(self.address, tls) as channel, calling("helper"):
            stub = helper_pb2_grpc.HelperStub(channel)
            return bytes(
                stub.RegisterTask(
                    pb.RegisterTaskRequest(task=canonical.encode(self.scene.task)), timeout=HANGS_S
                ).signature
            )

    def is_alive(self) -> bool:
        return self.register(self.ours) == self.scene.bundle.signatures[0]

    def is_alive_in_the_end(self) -> bool:
        """The same, once calls whose clients know their end have given their places back."""
        until = time.monotonic() + HANGS_S
        while time.monotonic() < until:
            with suppress(HelperUnavailable):
                return self.is_alive()
            time.sleep(0.02)
        return False


def certificate(folder: Path, name: str, **how: Any) -> TlsFiles:
    folder.mkdir()
    return write_certificate(folder, name=name, hosts=("localhost",), **{"now": datetime.now(UTC), **how})


@dataclass
class Clock:
    """What a server's patience is measured by: it stands still unless a test lets it go on."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_until(self, is_so: Callable[[], bool], step_s: float) -> None:
        """Let time pass until the server has done something about it."""
        until = time.monotonic() + HANGS_S
        while not is_so():
            assert time.monotonic() < until
            self.now_s += step_s
            time.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("maskedlark.rpc.stream_timeouts.monotonic", made)
    return made


@pytest.fixture
def door(tmp_path: Path, clock: Clock) -> Iterator[Door]:
    scene = Scene(tmp_path / "scene")
    helper, ours, others = (
        certificate(tmp_path / str(place), name)
        for place, name in enumerate(("north", scene.task.origin, "https://other.example"))
    )
    helper.trusted_authorities.write_bytes(ours.certificate.read_bytes() + others.certificate.read_bytes())
    for one in (ours, others):
        one.trusted_authorities.write_bytes(helper.certificate.read_bytes())
    metrics = HelperMetrics(scene.cores[0])
    patience = Patience(first_s=IDLE_S, idle_s=IDLE_S)
    settings = ServerSettings(listen="localhost:0", tls=helper, threads=4, patience=patience)
    watched = WatchedServer(settings, metrics.registry)
    helper_pb2_grpc.add_HelperServicer_to_server(
        HelperService(scene.cores[0], None, metrics, body_s=10 * IDLE_S), watched.server
    )
    watched.start()
    made = Door(scene=scene, port=watched.port, metrics=metrics, helper=helper, ours=ours, others=others)
    assert made.is_alive()
    yield made
    assert made.is_alive_in_the_end()
    watched.drain(0.5)


def refused_handshakes(door: Door) -> float:
    return door.count("maskedlark_tls_handshakes_total") - door.count("maskedlark_tls_connections_total")


@pytest.mark.parametrize("visitor", ["no certificate", "expired", "of another authority", "plaintext"])
def test_without_a_trusted_certificate_nobody_gets_past_the_handshake(
    door: Door, tmp_path: Path, visitor: str
) -> None:
    origin = door.scene.task.origin
    tls: TlsFiles | TrustOnly | None
    match visitor:
        case "no certificate":
            tls = TrustOnly(trusted_authorities=door.helper.certificate)
        case "expired":
            tls = certificate(tmp_path / "old", origin, now=datetime.now(UTC) - timedelta(days=10), days=5)
            door.helper.trusted_authorities.write_bytes(
                door.helper.trusted_authorities.read_bytes() + tls.certificate.read_bytes()
            )
        case "of another authority":
            tls = certificate(tmp_path / "stranger", origin)
        case _:
            tls = None
    if isinstance(tls, TlsFiles):
        tls = replace(tls, trusted_authorities=door.ours.trusted_authorities)
    before = refused_handshakes(door)
    with pytest.raises(HelperUnavailable):
        door.register(tls)
    assert refused_handshakes(door) > before


def test_another_tenants_certificate_cannot_use_the_task(door: Door) -> None:
    with refused(JobReason.UNAUTHORIZED):
        door.register(door.others)
    assert door.count("maskedlark_refusals_total", kind="JobRefused", reason="unauthorized") == 1


def test_the_audit_log_says_whose_certificate_was_refused_and_from_where(door: Door) -> None:
    for _ in range(3):
        with refused(JobReason.UNAUTHORIZED):
            door.register(door.others)
    door.scene.cores[0].refused.flush(is_over=True)
    entries = AuditReport(door.scene.cores[0].ledger.engine).newest(2)
    certificate = x509.load_pem_x509_certificate(door.others.certificate.read_bytes())
    who = Actor(
        kind=ActorKind.CERTIFICATE,
        name="https://other.example localhost",
        identity=sha256_of(certificate),
        address=entries[0].actor.address,
    )
    assert who.address in ("127.0.0.1", "::1")
    what = {
        "task": door.scene.task_id.hex(),
        "why": "the client's certificate does not name the task's origin",
    }
    found = [(one.act, one.actor, one.outcome, one.count, one.subject) for one in entries]
    assert found == [
        (AuditAct.SIGN_TASK, who, "unauthorized", 1, what),
        (AuditAct.SIGN_TASK, who, "unauthorized", 2, what),
    ]


def test_a_browsers_upload_to_a_helper_finds_no_such_method(door: Door) -> None:
    report = report_to_message(door.scene.reports(1)[0])
    with make_channel(door.address, door.ours) as channel, pytest.raises(grpc.RpcError) as refused:
        ingest_pb2_grpc.IngestStub(channel).Submit(iter([report]), timeout=HANGS_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert door.count("maskedlark_calls_total", method="unknown", code="UNIMPLEMENTED") == 1


def raw(door: Door, method: str, encoded: bytes, **call: Any) -> grpc.StatusCode:
    """How bytes of our own choice are answered, if they are sent without our channels' own limit."""
    root, key, chain_of = (
        one.read_bytes()
        for one in (door.ours.trusted_authorities, door.ours.private_key, door.ours.certificate)
    )
    credentials, options = (
        grpc.ssl_channel_credentials(root, key, chain_of),
        (("grpc.max_send_message_length", -1),),
    )
    with (
        grpc.secure_channel(door.address, credentials, options) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(f"/maskedlark.v1.Helper/{method}", None, None)(encoded, timeout=HANGS_S, **call)
    code: grpc.StatusCode = refused.value.code()
    return code


def test_a_message_over_the_limit_is_refused_before_it_is_parsed(door: Door) -> None:
    assert raw(door, "CommitDataset", bytes(MAX_MESSAGE_BYTES + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert door.count("maskedlark_calls_begun_total", method="CommitDataset") == 1
    assert door.count("maskedlark_malformed_messages_total", method="CommitDataset") == 0


def test_a_stream_over_its_limit_is_refused_and_counted(door: Door) -> None:
    mebibytes = Limits.admitting(HELPER_PARAMETERS).max_bytes >> 20
    pieces = (pb.StartJobRequest(model=bytes(1 << 20)) for _ in range(mebibytes + 1))
    with make_channel(door.address, door.ours) as channel, calling("helper"), pytest.raises(grpc.RpcError):
        helper_pb2_grpc.HelperStub(channel).StartJob(
            chain([pb.StartJobRequest(job=canonical.encode(door.scene.job(bytes(32))))], pieces),
            timeout=HANGS_S,
        )
    assert door.count("maskedlark_refusals_total", kind="JobRefused", reason="too_large") == 1


def test_metadata_over_the_limit_is_refused_and_counted(door: Door) -> None:
    assert (
        raw(door, "GetStatus", b"", metadata=(("padding", "x" * 40_000),))
        is grpc.StatusCode.RESOURCE_EXHAUSTED
    )
    assert door.count("maskedlark_calls_total", method="GetStatus", code="OK") == 0


def test_a_message_that_does_not_parse_is_refused_and_counted(door: Door) -> None:
    assert raw(door, "RegisterTask", b"\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT
    assert door.count("maskedlark_malformed_messages_total", method="RegisterTask") == 1


@pytest.mark.parametrize("method", ["PrepareDataset", "StartJob", "RunRound"])
def test_streams_that_say_nothing_are_ended_and_their_threads_free_again(
    door: Door, clock: Clock, method: str
) -> None:
    never = Event()

    def stopping() -> Iterator[Any]:
        never.wait(HANGS_S)
        yield from ()

    with make_channel(door.address, door.ours) as channel:
        stub: Any = helper_pb2_grpc.HelperStub(channel)
        calls = [
            getattr(stub, method).future(stopping())
            if method == "StartJob"
            else getattr(stub, method)(stopping())
            for _ in range(4)
        ]
        clock.pass_until(lambda: sum(call.done() for call in calls) == 2, step_s=0.0)
        with pytest.raises(JobRefused):  # another tenant is heard meanwhile
            door.register(door.others)
        clock.pass_until(lambda: all(call.done() for call in calls), IDLE_S)
        codes = sorted(call.code().name for call in calls)  # of the four threads a tenant gets two
        assert codes == ["CANCELLED", "CANCELLED", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
        never.set()
    assert door.count("maskedlark_slow_clients_total") == 2


def test_a_preparation_that_says_nothing_after_an_answer_is_ended(door: Door, clock: Clock) -> None:
    header = pb.PrepareRequest.Header(task_id=door.scene.task_id, handle=HANDLE)
    never = Event()

    def stopping() -> Iterator[pb.PrepareRequest]:
        yield pb.PrepareRequest(header=header)
        yield chunk_message(shares_for(door.scene.reports(5), 0))
        never.wait(HANGS_S)

    with make_channel(door.address, door.ours) as channel:
        call = helper_pb2_grpc.HelperStub(channel).PrepareDataset(stopping())
        assert len(next(call).is_admitted) == 5
        clock.pass_until(call.done, IDLE_S)
        assert call.code() is grpc.StatusCode.CANCELLED
        never.set()
    assert door.count("maskedlark_slow_clients_total") == 1


def test_connections_that_say_nothing_hold_nobody_up_and_are_counted(door: Door) -> None:
    """That they are ended too shows `tests/e2e/test_strangers.py`, which has the ten seconds that it
    takes."""
    before = refused_handshakes(door)
    silent = [connect(("localhost", door.port)) for _ in range(50)]
    for one in silent[:25]:
        one.sendall(b"\x16\x03\x01")  # the first bytes of a TLS hello
    assert door.is_alive()
    until = time.monotonic() + HANGS_S
    while refused_handshakes(door) < before + len(silent):
        assert time.monotonic() < until, "a connection was not counted"
        time.sleep(0.02)
    for one in silent:
        one.close()


def test_frames_that_are_no_http2_end_the_connection_only(door: Door) -> None:
    context = ssl.create_default_context(cafile=door.helper.certificate)
    context.load_cert_chain(door.ours.certificate, door.ours.private_key)
    context.set_alpn_protocols(["h2"])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for frames in (
        b"GET / HTTP/1.1\r\n\r\n",
        preface + b"\xff" * 64,
        preface + bytes((0, 0, 4, 4)) + os.urandom(60),
        os.urandom(4096),
    ):
        check_that_it_ends(("localhost", door.port), context, frames)


def test_more_health_watches_than_threads_and_slots_hold_nobody_up(door: Door) -> None:
    with make_channel(door.address, door.ours) as channel:
        watches = [
            health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(40)
        ]
        assert {watch.code() for watch in watches} <= {
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        }
        assert (
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S).status
            == 1
        )


def test_calls_that_never_send_their_one_message_are_ended(door: Door, clock: Clock) -> None:
    never = Event()

    def stopping() -> Iterator[bytes]:
        never.wait(HANGS_S)
        yield from ()

    with make_channel(door.address, door.ours) as channel:
        check = channel.stream_unary("/grpc.health.v1.Health/Check", None, None)
        calls = [check.future(stopping()) for _ in range(4)]
        assert door.is_alive()
        clock.pass_until(lambda: all(call.done() for call in calls), IDLE_S)
        assert {call.code() for call in calls} == {grpc.StatusCode.CANCELLED}
        never.set()


def dripping(first: bytes, over: Event) -> Iterator[pb.StartJobRequest]:
    yield pb.StartJobRequest(job=first)
    while not over.wait(IDLE_S / 2):
        yield pb.StartJobRequest(model=b"x")


def test_a_job_of_nobody_is_refused_before_its_model_is_read(door: Door) -> None:
    over = Event()
    spec = replace(door.scene.job(bytes(32)), task_id=bytes(32))
    with (
        make_channel(door.address, door.ours) as channel,
        pytest.raises(JobRefused) as refused,
        calling("helper"),
    ):
        helper_pb2_grpc.HelperStub(channel).StartJob(dripping(canonical.encode(spec), over), timeout=HANGS_S)
    over.set()
    assert refused.value.reason is JobReason.UNKNOWN_TASK
    assert door.count("maskedlark_slow_clients_total") == 0


def test_a_model_that_drips_is_ended_in_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    over = Event()
    job = canonical.encode(door.scene.job(bytes(32)))
    with monkeypatch.context() as real, make_channel(door.address, door.ours) as channel:
        real.setattr("maskedlark.rpc.stream_timeouts.monotonic", time.monotonic)
        call = helper_pb2_grpc.HelperStub(channel).StartJob.future(dripping(job, over), timeout=HANGS_S)
        assert call.code() is grpc.StatusCode.CANCELLED  # each piece came within the idle patience
    over.set()


def test_a_tenant_that_was_removed_is_refused_on_the_connection_that_it_has(door: Door) -> None:
    before = door.helper.trusted_authorities.read_bytes()
    with make_channel(door.address, door.ours) as channel:
        stub = helper_pb2_grpc.HelperStub(channel)
        assert stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name
        for left in (door.others.certificate.read_bytes(), b""):
            door.helper.trusted_authorities.write_bytes(left)
            with pytest.raises(HelperUnavailable, match="no longer trusted"), calling("helper"):
                stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S)
        door.helper.trusted_authorities.write_bytes(before)
        assert stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name


def test_a_database_that_does_not_answer_is_worth_asking_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OperationalError("SELECT a secret", None, Exception("server closed the connection"))

    with monkeypatch.context() as during:
        during.setattr(door.scene.cores[0].tasks, "register", gone)
        with pytest.raises(HelperUnavailable, match="database") as refused:
            door.register(door.ours)
    assert "secret" not in str(refused.value)
