"""The helper over real gRPC channels: what the wire adds to the core, and what it refuses."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from helper.gradient.engine import Batch, Interrupt, MaskedSum, never
from helper.ledger.audit_report import AuditReport
from helper.ledger.ledger import Ledger
from helper.ledger.records import key_of
from helper.serving.metrics import HelperMetrics
from helper.serving.service import HelperService
from maskedlark import canonical
from maskedlark.audit_log import AuditAct
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.model.limits import HELPER_PARAMETERS, Limits
from maskedlark.model.weights import QuantisedTensor
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.input_shares import FOUND_INSIDE
from maskedlark.reports.sealing import SignedKeyList, verify
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.faults import calling
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel, make_server
from maskedlark.rpc.wire import chunks
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.builders import share_to_message, shares_for
from tests.helper.datasets.test_sealing_a_dataset import hostile_shares
from tests.helper.parties import FLOORS, MODEL, NUM_VALUES, WEIGHTS, FakeEngine, Scene
from tests.helper.served import stub_of
from tests.patience import HANGS_S
from tests.refusals import refused

HANDLE = b"h" * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One helper behind a port."""

    stub: Any

    def prepare(self, task_id: bytes, parts: list[list[ShareForHelper]]) -> list[pb.PrepareReply]:
        requests = [
            pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=task_id, handle=HANDLE)),
            *map(chunk_message, parts),
            END,
        ]
        with calling("helper"):
            return list(self.stub.PrepareDataset(iter(requests), timeout=HANGS_S))

    def commit(self, task_id: bytes, chosen: bytes, dataset_id: bytes) -> pb.CommitReply:
        with calling("helper"):
            reply: pb.CommitReply = self.stub.CommitDataset(
                pb.CommitRequest(task_id=task_id, handle=HANDLE, chosen=chosen, dataset_id=dataset_id),
                timeout=HANGS_S,
            )
        return reply

    def start(self, job: bytes, model: bytes = MODEL) -> pb.StartJobReply:
        return self.start_stream(
            [pb.StartJobRequest(job=job), *(pb.StartJobRequest(model=piece) for piece in chunks(model))]
        )

    def start_stream(self, requests: list[pb.StartJobRequest]) -> pb.StartJobReply:
        with calling("helper"):
            reply: pb.StartJobReply = self.stub.StartJob(iter(requests), timeout=HANGS_S)
        return reply

    def round(self, spec: JobSpec, index: int, weights: bytes = WEIGHTS, size: int = 1 << 20) -> bytes:
        header = pb.RoundRequest(
            header=pb.RoundRequest.Header(task_id=spec.task_id, job_id=spec.job_id, round=index)
        )
        with calling("helper"):
            replies = self.stub.RunRound(
                iter([header, *(pb.RoundRequest(weights=piece) for piece in chunks(weights, size))]),
                timeout=HANGS_S,
            )
            return b"".join(reply.chunk for reply in replies)


END = pb.PrepareRequest(end=pb.PrepareRequest.End())


def chunk_message(shares: list[ShareForHelper]) -> pb.PrepareRequest:
    messages = [
        pb.HelperShare(
            report_id=one.report_id, time_bucket=one.time_bucket, share=share_to_message(one.share)
        )
        for one in shares
    ]
    return pb.PrepareRequest(chunk=pb.PrepareRequest.Chunk(shares=messages))


def serve(scene: Scene, role: int, tls: TlsFiles | None = None) -> tuple[grpc.Server, int]:
    server, port = make_server("127.0.0.1:0", tls, threads=4)
    helper_pb2_grpc.add_HelperServicer_to_server(HelperService(scene.cores[role]), server)
    server.start()
    return server, port


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def wires(scene: Scene) -> Iterator[tuple[Wire, Wire]]:
    with stub_of(scene.cores[0]) as first, stub_of(scene.cores[1]) as second:
        yield Wire(stub=first), Wire(stub=second)


def refusal(call: Any, *given: Any) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        call(*given)
    return refused.value.reason


def test_what_was_opened_for_a_stream_that_is_not_read_to_its_end_is_counted(scene: Scene) -> None:
    metrics = HelperMetrics(scene.cores[0])
    elsewhere = [
        replace(share, time_bucket=share.time_bucket + 1) for share in shares_for(scene.reports(2, seed=7), 0)
    ]
    header = pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=HANDLE))
    sent = iter((header, chunk_message([*shares_for(scene.reports(5), 0), *elsewhere]), chunk_message([])))
    with stub_of(HelperService(scene.cores[0], None, metrics), threads=2) as stub:
        replies = stub.PrepareDataset(sent, timeout=HANGS_S)
        assert sum(next(replies).is_admitted) == 5
        replies.cancel()
    samples = [
        sample
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "helper_shares_opened_total"
    ]
    counts = {sample.labels["outcome"]: sample.value for sample in samples}
    assert counts.pop("admitted") == 5
    assert sum(counts.values()) == 2


def test_a_stream_that_stops_before_its_end_is_malformed_and_keeps_no_room(
    scene: Scene, wires: tuple[Wire, Wire]
) -> None:
    header = pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=HANDLE))
    sent = [header, chunk_message(shares_for(scene.reports(5), 0))]
    with pytest.raises(JobRefused) as refused, calling("helper"):
        list(wires[0].stub.PrepareDataset(iter(sent), timeout=HANGS_S))
    assert refused.value.reason is JobReason.MALFORMED
    assert scene.cores[0].datasets.preparing_bytes == 0


def test_a_call_that_fails_is_read_no_further_though_its_client_may_go_on(
    scene: Scene, wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=HANDLE))
    ended = Event()

    def requests() -> Iterator[pb.PrepareRequest]:
        yield from (header, chunk_message(shares_for(scene.reports(5), 0)))
        ended.wait(HANGS_S)  # the helper awaits the next chunk while it looks the first one's ids up

    def away(*_: object) -> set[bytes]:
        raise HelperUnavailable("the store is away")

    monkeypatch.setattr(Ledger, "find_used", away)
    with pytest.raises(HelperUnavailable, match="the store is away"), calling("helper"):
        list(wires[0].stub.PrepareDataset(requests(), timeout=HANGS_S))
    assert scene.cores[0].datasets.preparing_bytes == 0
    deadline = time.monotonic() + HANGS_S
    while any(thread.name.startswith("read-ahead") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ended.set()


def test_the_room_of_a_stream_that_is_cancelled_is_free_again(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    header = pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=HANDLE))
    ended = Event()

    def requests() -> Iterator[pb.PrepareRequest]:
        yield from (header, chunk_message(shares_for(scene.reports(5), 0)))
        ended.wait(HANGS_S)  # as a client that is neither done nor gone

    replies = wires[0].stub.PrepareDataset(requests(), timeout=HANGS_S)
    next(replies)
    datasets = scene.cores[0].datasets
    assert datasets.preparing_bytes > 0
    replies.cancel()
    ended.set()
    deadline = time.monotonic() + HANGS_S
    while datasets.preparing_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_ad_server_is_not_told_what_was_wrong_inside_a_share(
    scene: Scene, wires: tuple[Wire, Wire]
) -> None:
    hostile = hostile_shares(scene)
    inside = {reason: share for reason, share in hostile.items() if reason in FOUND_INSIDE}
    assert len(inside) == 4
    outside = {reason.value: 1 for reason in hostile if reason not in FOUND_INSIDE}
    replies = wires[0].prepare(scene.task_id, [list(hostile.values())])
    assert dict(replies[-1].totals.dropped) == outside | {"not_opened": 1 + len(inside)}
    for share in inside.values():  # one at a time, below any k
        assert dict(wires[0].prepare(scene.task_id, [[share]])[-1].totals.dropped) == {"not_opened": 1}


def test_a_whole_job_over_the_wire(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    reports = scene.reports(30)
    replies = [
        wire.prepare(scene.task_id, [shares_for(reports[:17], role), shares_for(reports[17:], role)])
        for role, wire in enumerate(wires)
    ]
    for one in replies:
        assert [len(reply.is_admitted) for reply in one] == [17, 13, 0]
        assert one[-1].totals.received == one[-1].totals.admitted == 30
        assert dict(one[-1].totals.dropped) == {}
    assert [reply.view_tags for reply in replies[0]] == [reply.view_tags for reply in replies[1]]
    dataset = scene.id_of(reports, np.ones(30, np.bool_))
    assert {one[-1].totals.admitted_digest for one in replies} == {dataset}
    bits = np.packbits(np.ones(30, np.bool_), bitorder="little").tobytes()
    assert {wire.commit(scene.task_id, bits, dataset).size for wire in wires} == {30}

    spec = scene.job(dataset)
    started = wires[0].start(canonical.encode(spec))
    assert started == wires[1].start(canonical.encode(spec))
    assert (started.path, started.num_parameters, len(started.numerics_digest)) == ("exact", NUM_VALUES, 32)

    answers = [wire.round(spec, 0, size=3) for wire in wires]
    first, second = (AggregateShare.decode(answer, NUM_VALUES) for answer in answers)
    assert combine(first, second).tolist() == scene.plain_sum(30)
    assert wires[0].round(spec, 0) == answers[0]

    with calling("helper"):
        assert (
            wires[0]
            .stub.CloseJob(pb.CloseJobRequest(job=canonical.encode(spec)), timeout=HANGS_S)
            .rounds_answered
            == 1
        )


def test_the_operator_sees_which_floor_refused_a_task_and_stopped_a_job(
    scene: Scene, wires: tuple[Wire, Wire], caplog: pytest.LogCaptureFixture
) -> None:
    replies = wires[0].prepare(scene.task_id, [shares_for(scene.reports(30), 0)])
    admitted = np.frombuffer(replies[0].is_admitted, np.uint8).astype(np.bool_)
    dataset = scene.id_of(scene.reports(30), admitted)
    wires[0].commit(scene.task_id, np.packbits(admitted, bitorder="little").tobytes(), dataset)
    spec = scene.job(dataset)
    wires[0].start(canonical.encode(spec))
    too_much = replace(scene.task, epsilon=6.0, collusion_epsilon=12.0)
    scene.restart(floors=replace(FLOORS, max_epsilon=min(5.0, scene.task.epsilon / 2)))
    caplog.clear()
    told = []
    with stub_of(scene.cores[0]) as stub:
        with pytest.raises(JobRefused) as refused, calling("helper"):
            stub.RegisterTask(pb.RegisterTaskRequest(task=canonical.encode(too_much)), timeout=HANGS_S)
        told.append(str(refused.value).removeprefix("helper: "))
        with pytest.raises(JobRefused) as refused:
            Wire(stub=stub).round(spec, 0)
        told.append(str(refused.value).removeprefix("helper: "))
    signing, answering = AuditReport(scene.cores[0].ledger.engine).newest(2)
    assert (signing.act, answering.act) == (AuditAct.SIGN_TASK, AuditAct.ANSWER_ROUND)
    assert signing.subject == {"task": too_much.task_id.hex(), "why": told[0]}
    job = {"task": scene.task_id.hex(), "job": spec.job_id.hex()}
    assert answering.subject == job | {"why": told[1]}
    assert "epsilon is" in told[0]
    assert "this helper allows at most" in told[1]
    lines = [one for one in caplog.messages if one.startswith("refused ")]
    assert lines == [
        f"refused sign_task of loopback, task {too_much.task_id.hex()}: task_refused: {told[0]}",
        f"refused answer_round of loopback, task {job['task']}, job {job['job']}: task_refused: {told[1]}",
    ]


def test_status_needs_no_task_and_shows_signed_keys(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    reply = wires[0].stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S)
    identity = scene.task.helpers[0]
    assert (reply.name, reply.verify_key, reply.agreement_key) == (
        identity.name,
        identity.verify_key,
        identity.agreement_key,
    )
    canonical.decode(SignedKeyList, reply.key_list).verify(identity.verify_key)
    assert (reply.tasks, reply.datasets, reply.open_jobs, reply.rounds_answered) == (1, 0, 0, 0)
    assert len(reply.numerics_digest) == 32


def test_a_registered_task_is_signed(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    reply = wires[1].stub.RegisterTask(
        pb.RegisterTaskRequest(task=canonical.encode(scene.task)), timeout=HANGS_S
    )
    verify(scene.task.helpers[1].verify_key, scene.task.signing_bytes(), reply.signature)


def test_a_refusal_arrives_as_the_error_that_was_raised(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    with pytest.raises(InvalidTask, match="JobSpec"):
        wires[0].start(b"{}")
    assert refusal(wires[0].round, scene.job(bytes(32), job_id=b"?" * 16), 0) is JobReason.UNKNOWN_JOB
    assert refusal(wires[0].prepare, b"?" * 32, []) is JobReason.UNKNOWN_TASK


@pytest.mark.parametrize("requests", [[], [pb.RoundRequest()], [pb.RoundRequest(weights=b"w")]])
def test_a_stream_without_its_header_is_malformed(
    wires: tuple[Wire, Wire], requests: list[pb.RoundRequest]
) -> None:
    with pytest.raises(JobRefused) as refused, calling("helper"):
        list(wires[0].stub.RunRound(iter(requests), timeout=HANGS_S))
    assert refused.value.reason is JobReason.MALFORMED


def test_a_stream_with_a_second_header_is_malformed(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    header = pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=HANDLE))
    with pytest.raises(JobRefused) as refused, calling("helper"):
        list(wires[0].stub.PrepareDataset(iter([header, header]), timeout=HANGS_S))
    assert refused.value.reason is JobReason.MALFORMED
    job = canonical.encode(scene.job(bytes(32)))
    assert refusal(wires[0].start_stream, [pb.StartJobRequest(job=job)] * 2) is JobReason.MALFORMED


def test_a_model_over_the_limit_is_cut_off(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    piece = pb.StartJobRequest(model=bytes(1 << 20))
    requests = [pb.StartJobRequest(job=canonical.encode(scene.job(bytes(32))))] + [piece] * (
        Limits.admitting(HELPER_PARAMETERS).max_bytes // (1 << 20) + 1
    )
    assert refusal(wires[0].start_stream, requests) is JobReason.TOO_LARGE


def test_a_job_over_the_limit_is_refused(wires: tuple[Wire, Wire]) -> None:
    assert refusal(wires[0].start, bytes(canonical.MAX_BYTES + 1)) is JobReason.TOO_LARGE


def test_more_weights_than_the_model_has_are_cut_off(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    assert refusal(wires[0].round, spec, 0, WEIGHTS + b"\0") is JobReason.TOO_LARGE
    assert refusal(wires[0].round, spec, 0, WEIGHTS[:-1]) is JobReason.MALFORMED


class BrokenEngine(FakeEngine):
    """An engine with a bug."""

    def masked_sum(
        self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        raise RuntimeError("secret detail")


def test_a_bug_is_internal_without_detail_and_leaves_the_service_alive(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.restart(engine_for=lambda model, loss, clip, classes: BrokenEngine(model.num_parameters, clip))
    server, port = serve(scene, 0)
    with make_channel(f"127.0.0.1:{port}", None) as channel:
        wire = Wire(stub=helper_pb2_grpc.HelperStub(channel))
        with refused(JobReason.PEER_FAILED) as caught:
            wire.round(spec, 0)
        assert "secret" not in str(caught.value)
        assert wire.stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).rounds_answered == 0
    server.stop(None).wait()
    assert "secret detail" in caplog.text


def test_a_stream_that_breaks_off_uses_nothing_up(scene: Scene, wires: tuple[Wire, Wire]) -> None:
    reports = scene.reports(5)

    def broken() -> Iterator[pb.PrepareRequest]:
        yield pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=HANDLE))
        yield chunk_message(shares_for(reports, 0))
        raise ConnectionError

    with pytest.raises(grpc.RpcError):
        list(wires[0].stub.PrepareDataset(broken(), timeout=HANGS_S))
    assert wires[0].stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).datasets == 0
    prepared = scene.prepare(reports)
    assert prepared.chosen.all()
    scene.commit(prepared)


# --- who may call


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A helper that asks for certificates, and two ad servers that it trusts to be who they are."""

    port: int
    ours: TlsFiles
    others: TlsFiles


@pytest.fixture
def certified(scene: Scene, tmp_path: Path) -> Iterator[Certified]:
    now = datetime.now(UTC)
    files = {}
    for name, hosts in (
        ("helper", ("localhost",)),
        ("https://ads.example", ()),
        ("https://other.example", ()),
    ):
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir()
        files[name] = write_certificate(folder, name=name, hosts=hosts, now=now)
    helper, ours, others = files.values()
    helper.trusted_authorities.write_bytes(ours.certificate.read_bytes() + others.certificate.read_bytes())
    for client in (ours, others):
        client.trusted_authorities.write_bytes(helper.certificate.read_bytes())
    server, port = serve(scene, 0, helper)
    yield Certified(port=port, ours=ours, others=others)
    server.stop(None).wait()


def register(scene: Scene, port: int, tls: TlsFiles) -> bytes:
    with make_channel(f"localhost:{port}", tls) as channel, calling("helper"):
        stub = helper_pb2_grpc.HelperStub(channel)
        return bytes(
            stub.RegisterTask(
                pb.RegisterTaskRequest(task=canonical.encode(scene.task)), timeout=HANGS_S
            ).signature
        )


def test_the_origin_in_the_certificate_is_served(scene: Scene, certified: Certified) -> None:
    assert register(scene, certified.port, certified.ours) == scene.bundle.signatures[0]


def test_another_origin_in_the_certificate_is_not_served(scene: Scene, certified: Certified) -> None:
    assert refusal(register, scene, certified.port, certified.others) is JobReason.UNAUTHORIZED


def test_an_unknown_certificate_gets_no_answer(scene: Scene, certified: Certified, tmp_path: Path) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    stranger = write_certificate(folder, name="https://ads.example", now=datetime.now(UTC))
    stranger.trusted_authorities.write_bytes(certified.ours.trusted_authorities.read_bytes())
    with pytest.raises(HelperUnavailable):
        register(scene, certified.port, stranger)


def test_a_trusted_origin_cannot_certify_itself_as_another(
    scene: Scene, certified: Certified, tmp_path: Path
) -> None:
    issuer = x509.load_pem_x509_certificate(certified.others.certificate.read_bytes())
    issuer_key = load_pem_private_key(certified.others.private_key.read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, scene.task.origin)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(scene.task.origin)]), critical=False
        )
        .sign(issuer_key, hashes.SHA256())
    )
    files = TlsFiles(
        certificate=tmp_path / "forged.crt",
        private_key=tmp_path / "forged.key",
        trusted_authorities=certified.ours.trusted_authorities,
    )
    files.certificate.write_bytes(forged.public_bytes(Encoding.PEM) + issuer.public_bytes(Encoding.PEM))
    files.private_key.touch(mode=0o600)
    files.private_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(HelperUnavailable):
        register(scene, certified.port, files)


# --- what must not be seen


def test_neither_disk_nor_log_shows_a_feature_a_mask_or_a_key(
    scene: Scene, wires: tuple[Wire, Wire], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    dataset = scene.seal(30)
    spec = scene.job(dataset)
    scene.start(spec)
    wires[0].round(spec, 0)
    opened = scene.cores[0].datasets.open(dataset)
    clear = [
        opened.shares.features.tobytes()[:12],
        opened.shares.mask_shares[0].tobytes(),
        opened.shares.features[7].tobytes(),
    ]
    keys = scene.parties[0].data / "keys.json"
    for path in scene.parties[0].data.rglob("*"):
        if path.is_file() and path != keys:
            content = path.read_bytes()
            assert not any(piece in content for piece in clear)
    assert caplog.messages
    shown = (
        caplog.text
        + repr(opened)
        + repr(scene.cores[0].jobs.at_work(key_of(spec), None))
        + repr(scene.parties[0].keys)
    )
    for piece in [*clear, *opened.report_ids[:3].view("V16").ravel().tolist()]:
        assert piece.hex() not in shown
        assert repr(piece)[2:-1] not in shown


def test_status_tells_a_tenant_nothing_of_how_much_the_helper_holds(
    scene: Scene, certified: Certified, wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise HelperUnavailable("the disk is full: 7 bytes free, 900 needed; make room")

    monkeypatch.setattr(type(scene.cores[0].datasets), "check_room", lambda _: full())
    with make_channel(f"localhost:{certified.port}", certified.others) as channel:
        reply = helper_pb2_grpc.HelperStub(channel).GetStatus(pb.StatusRequest(), timeout=HANGS_S)
    # What a dataset of somebody else wanted is its operator's to know
    assert reply.not_well == "the disk is full: its operator must make room"
    assert "900 needed" in wires[0].stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).not_well
    assert reply.name == scene.parties[0].keys.identity.name
    assert not [
        name for name in ("tasks", "datasets", "open_jobs", "rounds_answered") if reply.HasField(name)
    ]
