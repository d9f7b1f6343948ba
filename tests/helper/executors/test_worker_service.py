"""Workers over gRPC: only machines of one cluster understand each other, and a call ends as asked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event

import grpc
import pytest

from helper.datasets import segments, updates
from helper.executors import clustered, worker_client, worker_service
from helper.executors.clustered import ClusterExecutor
from helper.executors.fleet import JoinRefused, WorkerLost, WrongAnswer
from helper.executors.worker import SegmentWorker
from helper.executors.worker_service import serve
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import Interrupt, never
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import TrustOnly, make_channel
from protos import worker_pb2, worker_pb2_grpc
from tests.builders import examples, reports, shares_for, world
from tests.helper.executors.clustered_site import Site, scoring_of
from tests.helper.executors.served_workers import HOST, ServedFleet, Wire, called, certified, served, tls_of
from tests.helper.executors.test_adding import Site as UpdateSite
from tests.helper.parties import MODEL
from tests.patience import HANGS_S


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified(tmp_path_factory.mktemp("cluster") / "secrets")


@pytest.fixture
def tls(machine: Path) -> TlsFiles:
    return tls_of(machine)


@pytest.fixture
def fleet(tls: TlsFiles) -> Iterator[ServedFleet]:
    """Two workers, the second one over a wire."""
    with ExitStack() as open_:
        addresses = [open_.enter_context(served(SegmentWorker(1 << 30), tls)) for _ in range(2)]
        clients = [open_.enter_context(called(address, tls)) for address in addresses]
        yield ServedFleet(clients={client.name: client for client in clients})


class Does:
    """A worker that does what a test says."""

    def __init__(self, work: Callable[[bytes, Interrupt], bytes]) -> None:
        self.do = work


def test_workers_sum_and_score_as_this_machine_does(
    fleet: ServedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    with Site(tmp_path) as site:
        site.cluster = ClusterExecutor(fleet, site.local)
        for seed in range(2):
            site.assert_equal(seed=seed)
        found = [one.scan(scoring_of(3), site.records, never) for one in (site.local, site.cluster)]
        assert found[0].bins.tolist() == found[1].bins.tolist()
        assert len(fleet.clients) == 2


def test_workers_add_updates_up_as_this_machine_does(
    fleet: ServedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MOST_SHARES", 2)
    site = UpdateSite(tmp_path)
    site.cluster = ClusterExecutor(fleet, site.local)
    site.assert_equal()
    assert len(fleet.clients) == 2
    site.cluster.close()


def test_workers_open_shares_as_this_machine_does(
    fleet: ServedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    monkeypatch.setattr(clustered, "MIN_CHUNK", 2)
    of = world()
    opener, incoming = of.opener(0), shares_for(reports(of, examples(of.task, 30)), 0)
    with Site(tmp_path) as site:
        found = ClusterExecutor(fleet, site.local, opens_shares=True).open(opener, incoming)
    expected = opener.open(incoming)
    assert found.admitted.view_tags.tobytes() == expected.admitted.view_tags.tobytes()
    assert found.shares.mask_shares.tobytes() == expected.shares.mask_shares.tobytes()
    assert len(fleet.clients) == 2


def test_nothing_that_passes_between_head_and_workers_is_cleartext(
    tls: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    of = world()
    opener, incoming = of.opener(0), shares_for(reports(of, examples(of.task, 200)), 0)
    with Site(tmp_path) as site, served(SegmentWorker(1 << 30), tls) as address:
        wire = Wire(address)
        with called(wire.address, tls) as client:
            fleet = ServedFleet(clients={client.name: client})
            site.cluster = ClusterExecutor(fleet, site.local, opens_shares=True)
            site.assert_equal()
            prepared = site.cluster.open(opener, incoming)
            assert fleet.clients
        wire.close()
        (piece, *_) = site.records.pieces(never)
        secrets = [one.key for one in site.records.sealed(never) or ()]
        secrets += [row.tobytes() for row in (*piece.shares.mask_shares, *prepared.shares.mask_shares)]
        secrets += [key.secret_bytes() for key in opener.opening_keys] + [opener.view_key.secret_bytes()]
        secrets += [one.share.ciphertext for one in incoming] + [MODEL]
    assert min(map(len, secrets)) >= 16  # fewer bytes are somewhere among the random ones by chance
    assert len(wire.carried) > 10_000
    assert not [
        secret for secret in secrets if secret in wire.carried or secret.hex().encode() in wire.carried
    ]


def test_a_worker_of_another_cluster_or_address_is_refused(tls: TlsFiles, tmp_path: Path) -> None:
    others = {
        "another cluster": tls_of(certified(tmp_path / "others")),
        "another address": tls_of(certified(tls.certificate.parents[2], "127.0.0.3")),
        "Ray's certificate": worker_files(tls.certificate.parents[1]),
    }
    for other in others.values():
        with (
            served(SegmentWorker(0), other) as address,
            called(address, tls) as client,
            pytest.raises(JoinRefused, match="no certificate of this cluster for its address"),
        ):
            client.greet()


def worker_files(folder: Path) -> TlsFiles:
    return TlsFiles(
        certificate=folder / "tls.crt",
        private_key=folder / "tls.key",
        trusted_authorities=folder / "ca.crt",
    )


def test_a_worker_answers_nobody_without_a_certificate_of_its_cluster(tls: TlsFiles, tmp_path: Path) -> None:
    other = tls_of(certified(tmp_path / "others"))
    callers = {
        "plaintext": None,
        "no certificate": TrustOnly(trusted_authorities=tls.trusted_authorities),
        "of another authority": replace(other, trusted_authorities=tls.trusted_authorities),
        "Ray's": replace(
            worker_files(tls.certificate.parents[1]), trusted_authorities=tls.trusted_authorities
        ),
    }
    asked: list[bytes] = []

    def do(order: bytes, _: Interrupt) -> bytes:
        asked.append(order)
        return b""

    with served(Does(do), tls) as address:
        for caller in callers.values():
            with make_channel(address, caller) as channel:
                stub = worker_pb2_grpc.WorkerStub(channel)
                with pytest.raises(grpc.RpcError):
                    stub.Greet(worker_pb2.GreetRequest())
                with pytest.raises(grpc.RpcError):
                    list(stub.Work(iter([worker_pb2.OrderPiece(data=b"order")])))
        with called(address, tls) as client:
            client.greet()
    assert not asked


def test_a_worker_of_other_software_is_refused(tls: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(SegmentWorker(0), tls) as address, called(address, tls) as client:
        monkeypatch.setattr(worker_service, "SOFTWARE", bytes(32))
        with pytest.raises(JoinRefused, match="other numerics"):
            client.greet()


def test_where_nobody_serves_a_worker_is_lost(tls: TlsFiles) -> None:
    with served(SegmentWorker(0), tls) as address:
        pass
    with called(address, tls) as client:
        with pytest.raises(WorkerLost):
            client.greet()
        with pytest.raises(WorkerLost):
            client.do(b"order", most_bytes=0, is_opening=False).answer.result()
    with pytest.raises(WorkerLost):
        client.do(b"order", most_bytes=0, is_opening=False).answer.result()


def test_no_two_workers_serve_at_one_port_and_none_without_an_authority(
    tls: TlsFiles, tmp_path: Path
) -> None:
    with served(SegmentWorker(0), tls) as address, pytest.raises(InvalidTask, match="cannot listen"):
        serve(SegmentWorker(0), address, tls)
    empty = tmp_path / "ca.crt"
    empty.touch(mode=0o600)
    with pytest.raises(InvalidTask, match="is empty"):
        serve(SegmentWorker(0), f"{HOST}:0", replace(tls, trusted_authorities=empty))


def test_an_order_that_is_cancelled_ends_at_its_worker_and_the_next_one_is_done(tls: TlsFiles) -> None:
    began, ended = Event(), Event()

    def do(order: bytes, interrupt: Interrupt) -> bytes:
        if order == b"next":
            return b"done"
        began.set()
        try:
            while True:
                interrupt()
        finally:
            ended.set()

    with served(Does(do), tls) as address, called(address, tls) as client:
        sent = client.do(b"order", most_bytes=100, is_opening=False)
        assert began.wait(HANGS_S)
        sent.cancel()
        with pytest.raises(WorkerLost):
            sent.answer.result()
        assert ended.wait(HANGS_S)
        assert client.do(b"next", most_bytes=100, is_opening=False).answer.result() == b"done"


def test_orders_are_done_one_at_a_time_and_shares_are_opened_beside_them(tls: TlsFiles) -> None:
    began, goes_on = Event(), Event()

    def do(order: bytes, _: Interrupt) -> bytes:
        if order == b"first":
            began.set()
            assert goes_on.wait(HANGS_S)
        return order

    with served(Does(do), tls) as address, called(address, tls) as client:
        first = client.do(b"first", most_bytes=100, is_opening=False)
        assert began.wait(HANGS_S)
        second = client.do(b"second", most_bytes=100, is_opening=False)
        assert client.do(b"shares", most_bytes=100, is_opening=True).answer.result() == b"shares"
        assert not second.answer.done()
        goes_on.set()
        assert (first.answer.result(), second.answer.result()) == (b"first", b"second")


@pytest.mark.parametrize("length", [0, 1, worker_client._THREADS, (1 << 20) - 1, 1 << 20, 5 << 20])
def test_orders_and_answers_of_any_length_come_through(tls: TlsFiles, length: int) -> None:
    with served(Does(lambda order, _: order), tls) as address, called(address, tls) as client:
        order = bytes(range(256)) * (length // 256 + 1)
        sent = client.do(order[:length], most_bytes=length, is_opening=False)
        assert sent.answer.result() == order[:length]


def test_an_answer_that_is_longer_than_its_order_asks_for_is_wrong(tls: TlsFiles) -> None:
    with served(Does(lambda *_: bytes(3 << 20)), tls) as address, called(address, tls) as client:
        sent = client.do(b"order", most_bytes=(3 << 20) - 1, is_opening=False)
        with pytest.raises(WrongAnswer):
            sent.answer.result()


def test_orders_of_a_worker_that_is_dropped_are_not_awaited(tls: TlsFiles) -> None:
    began = Event()

    def do(_: bytes, interrupt: Interrupt) -> bytes:
        began.set()
        while True:
            interrupt()

    with served(Does(do), tls) as address, called(address, tls) as client:
        sent = client.do(b"order", most_bytes=100, is_opening=False)
        assert began.wait(HANGS_S)
        client.close()
        with pytest.raises(WorkerLost):
            sent.answer.result()


def test_a_worker_that_answers_no_pings_is_lost_however_long_its_order_takes(tls: TlsFiles) -> None:
    began = Event()

    def do(_: bytes, interrupt: Interrupt) -> bytes:
        began.set()
        while True:
            interrupt()

    with served(Does(do), tls) as address:
        wire = Wire(address)
        with called(wire.address, tls, Keepalive(every_s=1.0, answer_s=1.0)) as client:
            sent = client.do(b"order", most_bytes=100, is_opening=False)
            assert began.wait(HANGS_S)
            wire.is_cut.set()
            with pytest.raises(WorkerLost):
                sent.answer.result(HANGS_S)
        wire.close()
