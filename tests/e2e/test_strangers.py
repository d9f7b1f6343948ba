"""Whoever should not get in knocks at three real processes under mutual TLS.

Refused, counted, and everybody else is served on.

`tests/helper/releases/test_no_one_in.py` and `tests/adserver/serving/test_adserver_metrics.py` try more of
each kind, in one process.
"""

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import httpx
import pytest

from adserver.quickstart.ports import free_ports
from docs.tutorial.fleet import HELPERS, HOST, ORIGIN, Fleet
from maskedlark import canonical
from maskedlark.model.losses import Loss
from maskedlark.randomness import seeded
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Sealer
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import MAX_MESSAGE_BYTES, TrustOnly, make_channel
from maskedlark.rpc.wire import encode_report, report_to_message
from protos import helper_pb2, helper_pb2_grpc, ingest_pb2_grpc
from tests.bad_frames import check_that_it_ends
from tests.builders import examples, job_spec
from tests.fleet_commands import create_task
from tests.patience import HANGS_S, connect

pytestmark = [pytest.mark.slow, pytest.mark.long]
OTHER_ORIGIN = "https://other.example"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Three parties that run, their ports for the operator, and the certificates of two ad servers that
    helper 0 trusts.
    """

    fleet: Fleet
    ports: list[int]
    bundle: TaskBundle
    folder: Path
    ours: TlsFiles
    others: TlsFiles

    @property
    def helper(self) -> str:
        return (self.fleet.folder / "helper-0.address").read_text()

    def metric(self, party: int, start: str) -> float:
        """The sum of a party's samples that begin so."""
        with urlopen(
            f"http://{HOST}:{self.ports[party]}/metrics", timeout=HANGS_S
        ) as answer:  # our own server
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    def unused_connections(self, party: int) -> float:
        """TLS connections over gRPC that were refused, or never carried a call."""
        return self.metric(party, "maskedlark_tls_handshakes_total") - self.metric(
            party, "maskedlark_tls_connections_total"
        )

    def register(self, tls: TlsFiles | TrustOnly | None) -> bytes:
        with make_channel(self.helper, tls) as channel:
            request = helper_pb2.RegisterTaskRequest(task=canonical.encode(self.bundle.task))
            return bytes(helper_pb2_grpc.HelperStub(channel).RegisterTask(request, timeout=HANGS_S).signature)

    def browser(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.fleet.data("adserver") / "tls.crt"))
        return httpx.Client(base_url=f"https://{self.fleet.http}", verify=context, timeout=HANGS_S)

    def is_alive(self) -> bool:
        with self.browser() as browser:
            return (
                self.register(self.ours) == self.bundle.signatures[0]
                and browser.get("/healthz").status_code == 200
            )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, ports = tmp_path_factory.mktemp("strangers"), free_ports(3)
    watched = [("--metrics-listen", f"{HOST}:{port}", "--log-format", "json") for port in ports]
    with Fleet(
        folder=folder / "parties",
        is_tls=True,
        helper_options_of=(watched[0], watched[1]),
        adserver_options=watched[2],
    ) as fleet:
        task = create_task(
            fleet, "strangers", "--classes 2 --num-features 4 --min-batch-size 50 --epsilon 1 --clip-norm 1"
        )
        files = fleet.data("adserver")
        ours = TlsFiles(
            certificate=files / "tls.crt",
            private_key=files / "tls.key",
            trusted_authorities=files / "trusted.crt",
        )
        others = certificate(folder / "others", OTHER_ORIGIN, ours)
        trust(fleet, others)
        context = ssl.create_default_context(cafile=str(ours.certificate))
        bundle = canonical.decode(
            TaskBundle,
            httpx.get(f"https://{fleet.http}/v1/tasks/{task}", verify=context, timeout=HANGS_S).content,
        )
        yield Site(fleet=fleet, ports=ports, bundle=bundle, folder=folder, ours=ours, others=others)
    for party in (*HELPERS, "adserver"):
        lines = [
            json.loads(line) for line in fleet.log(party).splitlines()
        ]  # also what gRPC, the HTTP server and Python said
        assert "draining" in {line["message"] for line in lines}


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    assert running.is_alive()


def certificate(folder: Path, name: str, like: TlsFiles, **how: Any) -> TlsFiles:
    """A new certificate of this name, and the trust of another one."""
    folder.mkdir()
    made = write_certificate(folder, name=name, hosts=(HOST,), **{"now": datetime.now(UTC), **how})
    return TlsFiles(
        certificate=made.certificate,
        private_key=made.private_key,
        trusted_authorities=like.trusted_authorities,
    )


def trust(fleet: Fleet, one: TlsFiles) -> None:
    """What helper 0's operator does for one more ad server; nothing is restarted."""
    trusted = fleet.data(HELPERS[0]) / "trusted.crt"
    trusted.write_bytes(trusted.read_bytes() + one.certificate.read_bytes())


def sealed_reports(site: Site, count: int = 1) -> Any:
    randomness = seeded(0, "strangers")
    people = examples(site.bundle.task, count, randomness)
    return [
        Sealer(site.bundle, now=time.time()).report(one, unix_s=time.time(), randomness=randomness)
        for one in people
    ]


@pytest.mark.parametrize("visitor", ["no certificate", "expired certificate", "wrong authority", "plaintext"])
def test_nobody_gets_past_a_helpers_handshake_without_a_trusted_certificate(
    site: Site, tmp_path: Path, visitor: str
) -> None:
    tls: TlsFiles | TrustOnly | None = None
    if visitor == "no certificate":
        tls = TrustOnly(trusted_authorities=site.fleet.data(HELPERS[0]) / "tls.crt")
    elif visitor == "expired certificate":
        tls = certificate(
            tmp_path / "old", ORIGIN, site.ours, now=datetime.now(UTC) - timedelta(days=10), days=5
        )
        trust(site.fleet, tls)
    elif visitor == "wrong authority":
        tls = certificate(tmp_path / "stranger", ORIGIN, site.ours)
    before = site.unused_connections(0)
    with pytest.raises(grpc.RpcError) as refused:
        site.register(tls)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert site.unused_connections(0) > before


def test_another_tenant_cannot_use_the_task(site: Site) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        site.register(site.others)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert site.metric(0, 'maskedlark_refusals_total{kind="JobRefused",reason="unauthorized"}') == 1


def test_a_browsers_upload_to_a_helper_finds_no_such_method(site: Site) -> None:
    with make_channel(site.helper, site.ours) as channel, pytest.raises(grpc.RpcError) as refused:
        ingest_pb2_grpc.IngestStub(channel).Submit(
            iter([report_to_message(sealed_reports(site)[0])]), timeout=HANGS_S
        )
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert site.metric(0, 'maskedlark_calls_total{code="UNIMPLEMENTED",method="unknown"}') == 1


def unlimited_channel(address: str, tls: TlsFiles) -> grpc.Channel:
    """A channel of somebody who sends messages of any size: our own refuse to."""
    root, key, chain_of = (
        one.read_bytes() for one in (tls.trusted_authorities, tls.private_key, tls.certificate)
    )
    options = (("grpc.max_send_message_length", -1),)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain_of), options)


def at_helper(site: Site, method: str, encoded: bytes, **call: Any) -> grpc.StatusCode:
    """How bytes of our own choice are answered."""
    with unlimited_channel(site.helper, site.ours) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/maskedlark.v1.Helper/{method}", None, None)(encoded, timeout=HANGS_S, **call)
    code: grpc.StatusCode = refused.value.code()
    return code


def test_a_message_over_a_helpers_limit_is_refused_and_counted(site: Site) -> None:
    begun, answered = (
        'maskedlark_calls_begun_total{method="CommitDataset"}',
        'maskedlark_calls_total{code="OK",method="CommitDataset"}',
    )
    before = site.metric(0, begun), site.metric(0, answered)
    assert (
        at_helper(site, "CommitDataset", bytes(MAX_MESSAGE_BYTES + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    )
    assert (site.metric(0, begun), site.metric(0, answered)) == (before[0] + 1, before[1])


def test_a_stream_over_a_helpers_limit_is_refused_and_counted(site: Site) -> None:
    pieces = (helper_pb2.StartJobRequest(model=bytes(1 << 20)) for _ in range(200))
    job = job_spec(
        job_id=bytes(16),
        task_id=site.bundle.task.task_id,
        loss=Loss.MSE,
        sampling_numerator=1,
        noise_multiplier=1.0,
    )
    with make_channel(site.helper, site.ours) as channel, pytest.raises(grpc.RpcError):
        helper_pb2_grpc.HelperStub(channel).StartJob(
            chain([helper_pb2.StartJobRequest(job=canonical.encode(job))], pieces), timeout=HANGS_S
        )
    assert site.metric(0, 'maskedlark_refusals_total{kind="JobRefused",reason="too_large"}') == 1


def test_a_message_that_does_not_parse_is_refused_and_counted(site: Site) -> None:
    assert at_helper(site, "RegisterTask", b"\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT
    assert site.metric(0, 'maskedlark_malformed_messages_total{method="RegisterTask"}') == 1


def test_metadata_over_a_helpers_limit_is_refused_and_counted(site: Site) -> None:
    begun, answered = (
        'maskedlark_calls_begun_total{method="GetStatus"}',
        'maskedlark_calls_total{code="OK",method="GetStatus"}',
    )
    before = site.metric(0, begun), site.metric(0, answered)
    assert (
        at_helper(site, "GetStatus", b"", metadata=(("padding", "x" * 40_000),))
        is grpc.StatusCode.RESOURCE_EXHAUSTED
    )
    assert (site.metric(0, begun), site.metric(0, answered)) == (before[0] + 1, before[1])


def test_a_report_and_a_batch_over_the_ad_servers_limit_are_refused_and_counted(site: Site) -> None:
    with site.browser() as browser:
        for path in ("/v1/reports", "/v1/reports/batch"):
            with suppress(httpx.WriteError, httpx.ReadError):  # it hangs up while we are still sending
                assert browser.post(path, content=bytes(9 << 20)).status_code == 413
    assert site.metric(2, 'adserver_http_responses_total{status="413"}') == 2


def test_reports_that_are_none_are_refused_and_counted(site: Site) -> None:
    [report] = sealed_reports(site)
    before = (
        site.metric(2, "adserver_reports_total"),
        site.metric(2, 'adserver_reports_total{outcome="accepted"}'),
    )
    with site.browser() as browser:
        assert browser.post("/v1/reports", content=b"\xff" * 40).json()["reason"] == "malformed"
        assert browser.post("/v1/reports", content=encode_report(report)[:-20]).status_code in (400, 422)
        assert browser.post("/v1/reports", content=encode_report(report)).status_code == 201
    after = (
        site.metric(2, "adserver_reports_total"),
        site.metric(2, 'adserver_reports_total{outcome="accepted"}'),
    )
    assert after == (before[0] + 3, before[1] + 1)


@pytest.mark.parametrize("party", ["helper", "grpc intake", "http intake"])
def test_frames_of_garbage_end_their_connection_only_and_are_counted(site: Site, party: str) -> None:
    address = {"helper": site.helper, "grpc intake": site.fleet.grpc, "http intake": site.fleet.http}[party]
    server = site.fleet.data(HELPERS[0] if party == "helper" else "adserver") / "tls.crt"
    context = ssl.create_default_context(cafile=str(server))
    context.load_cert_chain(site.ours.certificate, site.ours.private_key)
    context.set_alpn_protocols(["http/1.1" if party == "http intake" else "h2"])
    host, port = address.rsplit(":", 1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def counted() -> float:
        return (
            site.metric(2, "adserver_http_responses_total")
            if party == "http intake"
            else site.unused_connections(2 * (party != "helper"))
        )

    before = counted()
    for frames in (
        b"\xff" * 64 + b"\r\n\r\n",
        preface + b"\xff" * 64,
        preface + bytes((0, 0, 4, 4)) + os.urandom(60),
    ):
        check_that_it_ends((host, int(port)), context, frames)
    assert counted() >= before + 3


def test_slow_browsers_are_ended_and_counted_and_hold_nobody_up(site: Site) -> None:
    """At the same time: silent connections, heads and bodies that do not end over HTTP, and streams that stop
    over gRPC.
    """
    context = ssl.create_default_context(cafile=str(site.ours.certificate))
    host, port = site.fleet.http.rsplit(":", 1)
    begun = (
        b"",
        b"POST /v1/reports HTTP/1.1\r\nHost: ",
        b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nslow",
    )
    slow = [
        context.wrap_socket(
            socket.create_connection((host, int(port)), timeout=HANGS_S), server_hostname=HOST
        )
        for _ in range(3 * 20)
    ]
    for number, connection in enumerate(slow):
        connection.sendall(begun[number % 3])
    with make_channel(site.fleet.grpc, TrustOnly(trusted_authorities=site.ours.certificate)) as channel:
        submit = ingest_pb2_grpc.IngestStub(channel).Submit
        message = report_to_message(sealed_reports(site)[0])
        calls = [submit.future(dripping(message), timeout=HANGS_S) for _ in range(20)]
        assert site.is_alive()
        for connection in slow:
            said = b"".join(iter(lambda one=connection: one.recv(4096), b""))  # type: ignore[misc]  # bound at once
            assert said.startswith(b"HTTP/1.1 408")
            connection.close()
        assert {call.code() for call in calls} == {grpc.StatusCode.CANCELLED}
    assert site.metric(2, 'adserver_http_responses_total{status="408"}') == len(slow)
    assert site.metric(2, "maskedlark_slow_clients_total") == len(calls)


def dripping(message: Any) -> Iterator[Any]:
    """One report, and then nothing for as long as anybody listens."""
    yield message
    time.sleep(45)


def test_silent_connections_hold_nobody_up_at_a_helper_and_are_ended_and_counted(site: Site) -> None:
    """A third say nothing at all, a third stop in their TLS hello, and a third finish TLS as our ad server
    would and stop there.
    """
    host, port = site.helper.rsplit(":", 1)
    before = site.unused_connections(0)
    silent = [connect((host, int(port))) for _ in range(99)]
    began = time.monotonic()
    for one in silent[33:66]:
        one.sendall(b"\x16\x03\x01")  # the first bytes of a TLS hello
    context = ssl.create_default_context(cafile=str(site.fleet.data(HELPERS[0]) / "tls.crt"))
    context.load_cert_chain(site.ours.certificate, site.ours.private_key)
    context.set_alpn_protocols(["h2"])
    silent[66:] = [context.wrap_socket(one, server_hostname=HOST) for one in silent[66:]]
    assert site.is_alive()
    for one in silent:
        with suppress(ConnectionError, ssl.SSLError):
            while one.recv(4096):  # until the helper ends it
                assert time.monotonic() < began + HANGS_S
        one.close()
    assert site.unused_connections(0) >= before + len(silent)
