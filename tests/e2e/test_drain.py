"""SIGTERM while there is work under way, to real processes.

It is finished or taken back whole, and nothing acknowledged is lost.

`tests/maskedlark/observability/test_draining.py` looks at the drain itself, in one process.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adserver.peers.client import HelperClient
from adserver.quickstart.ports import free_ports
from docs.tutorial.fleet import HELPERS, HOST, Fleet
from helper.serving.server import DRAIN_S
from maskedlark.errors import HelperUnavailable
from maskedlark.model import weights
from maskedlark.model.onnx_file import parse
from maskedlark.releases.job import JobSpec
from maskedlark.reports.upload import Report
from maskedlark.rpc.faults import calling
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import report_to_message
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc, ingest_pb2_grpc, report_pb2
from tests.builders import share_to_message, shares_for
from tests.chaos.uploads import Uploads
from tests.e2e.same_round import FEATURES, job_over, new_reports, sealed_dataset
from tests.fleet_commands import create_model
from tests.patience import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.long]
WAIT_S: Final = HANGS_S
HELD_S: Final = 2.0
"""How long helper 0 holds an answer that is ready."""
SHORT_GRACE_S: Final = 1.0
HELPER_WITH_SHORT_GRACE: Final = (
    f"import helper.serving.server; helper.serving.server.DRAIN_S = {SHORT_GRACE_S}; "
    "from helper.cli.main import main; main()"
)


@dataclass(frozen=True, kw_only=True)
class Site:
    """Three parties that run, and a job over a sealed dataset."""

    fleet: Fleet
    metrics_port: int
    task: str
    job: JobSpec
    model: bytes
    sent: bytes
    length: int

    def address(self, role: int) -> str:
        return (self.fleet.folder / f"helper-{role}.address").read_text()

    def client(self, role: int) -> HelperClient:
        return HelperClient(self.address(role), None, WAIT_S)

    def run_round(self, client: HelperClient) -> bytes:
        return client.run_round(self.job, 0, self.sent, self.length).encode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    [port] = free_ports(1)
    held = ("--release-grid-ms", f"{1000 * HELD_S}", "--metrics-listen", f"{HOST}:{port}")
    with Fleet(folder=tmp_path_factory.mktemp("drain"), helper_options_of=(held, ())) as fleet:
        task, dataset = sealed_dataset(fleet)
        path = fleet.folder / "drained.onnx"
        create_model(fleet, path, (FEATURES, 1), seed=5)
        model = parse(path.read_bytes(), num_features=FEATURES)
        yield Site(
            fleet=fleet,
            metrics_port=port,
            task=task,
            job=job_over(task, dataset, model),
            model=path.read_bytes(),
            sent=weights.encode([weights.quantise(values) for values in model.initial_values]),
            length=model.num_parameters,
        )


def until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


@contextmanager
def asked_to_end(fleet: Fleet, party: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has got its SIGTERM, for the block to wait for; after it, the party is gone."""
    process = fleet._processes.pop(party)
    process.send_signal(signal.SIGTERM)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def health(address: str) -> Any:
    """What a probe hears that connects anew."""
    with make_channel(address, None) as channel:
        return (
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status
        )


def calls_begun(metrics_port: int, method: str) -> bool:
    with urlopen(f"http://{HOST}:{metrics_port}/metrics", timeout=WAIT_S) as answer:  # our own server
        return f'maskedlark_calls_begun_total{{method="{method}"}}' in answer.read().decode()


class Preparation:
    """A preparation whose shares are sent one at a time, for as long as the test likes."""

    def __init__(self, site: Site, channel: grpc.Channel, reports: list[Report], handle: bytes) -> None:
        self._requests: SimpleQueue[pb.PrepareRequest | None] = SimpleQueue()
        self._shares = iter(shares_for(reports, 0))
        header = pb.PrepareRequest.Header(task_id=bytes.fromhex(site.task), handle=handle)
        self._requests.put(pb.PrepareRequest(header=header))
        self._replies = helper_pb2_grpc.HelperStub(channel).PrepareDataset(
            iter(self._requests.get, None), timeout=3 * WAIT_S
        )

    def opens_one(self) -> bytes:
        one = next(self._shares)
        message = pb.HelperShare(
            report_id=one.report_id, time_bucket=one.time_bucket, share=share_to_message(one.share)
        )
        self._requests.put(pb.PrepareRequest(chunk=pb.PrepareRequest.Chunk(shares=[message])))
        return bytes(next(self._replies).is_admitted)

    def totals(self) -> dict[str, int]:
        self._requests.put(pb.PrepareRequest(end=pb.PrepareRequest.End()))
        self._requests.put(None)
        totals = next(self._replies).totals
        return {"received": totals.received, "admitted": totals.admitted}

    def is_cut_off(self) -> None:
        try:
            with pytest.raises(HelperUnavailable), calling("helper"):
                next(self._replies)
        finally:
            self._requests.put(None)


def test_a_helper_that_is_asked_to_end_finishes_a_round_and_a_preparation_and_takes_nothing_new(
    site: Site,
) -> None:
    sealed = new_reports(site.fleet, site.task, 2, "while a helper drains")
    with (
        site.client(0) as client,
        make_channel(site.address(0), None) as channel,
        ThreadPoolExecutor(1) as thread,
    ):
        client.start_job(site.job, site.model)
        preparation = Preparation(site, channel, sealed, b"finished in time")
        assert preparation.opens_one() == b"\x01"
        answer = thread.submit(site.run_round, client)
        until(lambda: calls_begun(site.metrics_port, "RunRound"))
        with asked_to_end(site.fleet, HELPERS[0]) as ending:
            until(lambda: health(site.address(0)) == health_pb2.HealthCheckResponse.NOT_SERVING)
            with site.client(0) as newcomer, pytest.raises(HelperUnavailable):
                newcomer.status()
            with pytest.raises(HelperUnavailable):
                site.run_round(client)
            told = answer.result(WAIT_S)
            assert health(site.address(0)) == health_pb2.HealthCheckResponse.NOT_SERVING
            assert preparation.opens_one() == b"\x01"
            assert preparation.totals() == {"received": 2, "admitted": 2}
            assert ending.wait(DRAIN_S) == 0
    site.fleet.start_helper(0)
    with site.client(0) as client:
        assert site.run_round(client) == told
        assert client.status().rounds_answered == 1


@contextmanager
def helper_with_short_grace(site: Site, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Helper 1, started anew; the program is ours but for the seconds that it gives calls under way."""
    site.fleet.kill(HELPERS[1])
    listen, ready = site.address(1), site.fleet.folder / "short.address"
    arguments = [
        "--data",
        str(site.fleet.data(HELPERS[1])),
        "--listen",
        listen,
        "--port-file",
        str(ready),
        "--insecure",
        *options,
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", HELPER_WITH_SHORT_GRACE, "serve", *arguments],
        cwd=Path.cwd(),
        stderr=subprocess.DEVNULL,
    )
    try:
        until(ready.exists)
        yield process
    finally:
        process.kill()
        process.wait()
        site.fleet.start_helper(1)


def test_what_takes_longer_than_a_helpers_grace_is_cut_off_can_be_asked_again_and_is_charged_once(
    site: Site,
) -> None:
    [port] = free_ports(1)
    with (
        helper_with_short_grace(
            site, "--release-grid-ms", "60000", "--metrics-listen", f"{HOST}:{port}"
        ) as process,
        site.client(1) as client,
        make_channel(site.address(1), None) as channel,
        ThreadPoolExecutor(1) as thread,
    ):
        client.start_job(site.job, site.model)
        preparation = Preparation(
            site, channel, new_reports(site.fleet, site.task, 1, "never"), b"longer than that"
        )
        answer = thread.submit(site.run_round, client)
        until(lambda: calls_begun(port, "RunRound"))
        time.sleep(1.0)  # the round is computed, and held for a minute before it is charged
        process.send_signal(signal.SIGTERM)
        preparation.is_cut_off()
        with pytest.raises(HelperUnavailable):
            answer.result(WAIT_S)
        assert process.wait(SHORT_GRACE_S + 10) == 0
    with site.client(1) as client:
        told = {site.run_round(client) for _ in range(3)}
        assert (len(told), client.status().rounds_answered) == (1, 1)


@dataclass(frozen=True, kw_only=True)
class HalfSent:
    """A batch over HTTP of which the rest has not left yet."""

    connection: socket.socket
    rest: bytes

    def finished(self) -> bytes:
        """What the server says to the whole of it."""
        self.connection.sendall(self.rest)
        return self.heard()

    def heard(self) -> bytes:
        """All that the server says, until it closes."""
        with self.connection:
            return b"".join(iter(lambda: self.connection.recv(4096), b""))


def half_sent(fleet: Fleet, batch: list[Report]) -> HalfSent:
    body = report_pb2.ReportBatch(reports=map(report_to_message, batch)).SerializeToString()
    host, port = fleet.http.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=2 * WAIT_S)
    head = (
        f"POST /v1/reports/batch HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length:"
        f" {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[: len(body) // 2])
    return HalfSent(connection=connection, rest=body[len(body) // 2 :])


def submitted(fleet: Fleet, batch: list[Report]) -> tuple[int, int]:
    """How many of a batch were new, and how many were stored before."""
    with make_channel(fleet.grpc, None) as channel:
        reply = ingest_pb2_grpc.IngestStub(channel).Submit(map(report_to_message, batch), timeout=WAIT_S)
    return int(reply.accepted), int(reply.duplicates)


def test_an_ad_server_that_is_asked_to_end_stores_what_it_acknowledges_and_acknowledges_no_half_of_an_upload(
    site: Site,
) -> None:
    before, finished, unfinished, streamed = (
        new_reports(site.fleet, site.task, 20, f"upload {n}") for n in range(4)
    )
    assert Uploads(site.fleet, site.task).send(before)
    ends, goes_on = half_sent(site.fleet, finished), half_sent(site.fleet, unfinished)
    messages: SimpleQueue[report_pb2.Report | None] = SimpleQueue()
    with make_channel(site.fleet.grpc, None) as channel:
        reply = ingest_pb2_grpc.IngestStub(channel).Submit.future(
            iter(messages.get, None), timeout=2 * WAIT_S
        )
        for report in streamed:
            messages.put(report_to_message(report))
        assert health(site.fleet.grpc) == health_pb2.HealthCheckResponse.SERVING
        with asked_to_end(site.fleet, "adserver") as ending:
            until(lambda: not listens(site.fleet.http))
            assert b'"accepted":20' in ends.finished()
            messages.put(None)
            assert reply.result(WAIT_S).accepted == 20
            assert b'"accepted"' not in goes_on.heard()
            assert ending.wait(WAIT_S) == 0
    site.fleet.start_adserver()
    for acknowledged in (before, finished, streamed):
        assert submitted(site.fleet, acknowledged) == (0, 20)
    assert submitted(site.fleet, unfinished) == (20, 0)


def listens(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True
