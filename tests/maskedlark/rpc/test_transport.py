import re
import select
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

import grpc
import pytest

from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidSetting,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
    ReportReason,
    ReportRejected,
)
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.rpc import transport, wire
from maskedlark.rpc.callers import client_names
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.faults import answering, calling, retry_hint_s
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import (
    MAX_MESSAGE_BYTES,
    RenewedChannel,
    is_loopback,
    make_channel,
    make_server,
)
from protos import helper_pb2, helper_pb2_grpc, report_pb2
from tests.patience import HANGS_S, connect

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Answering(helper_pb2_grpc.HelperServicer):
    """Fails as it is told, or answers with the names in the client's certificate."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    def GetStatus(  # noqa: N802 # gRPC's name
        self, request: helper_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> helper_pb2.StatusReply:
        with answering(context):
            if self.failure:
                raise self.failure
            return helper_pb2.StatusReply(name=",".join(sorted(client_names(context) or ())))


@dataclass
class Peer:
    servicer: Answering
    port: int

    def call(self, tls: TlsFiles | None = None, host: str = "127.0.0.1") -> str:
        with make_channel(f"{host}:{self.port}", tls) as channel, calling("helper 0"):
            reply = helper_pb2_grpc.HelperStub(channel).GetStatus(helper_pb2.StatusRequest(), timeout=HANGS_S)
            return str(reply.name)


def serve(tls: TlsFiles | None) -> tuple[grpc.Server, Peer]:
    servicer = Answering()
    server, port = make_server("127.0.0.1:0", tls, threads=2)
    helper_pb2_grpc.add_HelperServicer_to_server(servicer, server)
    server.start()
    return server, Peer(servicer, port)


@pytest.fixture
def peer() -> Iterator[Peer]:
    server, one = serve(None)
    yield one
    server.stop(0).wait()


@pytest.mark.parametrize(
    "failure",
    [
        InvalidTask("clip_norm: too large"),
        InvalidSetting("the keys have expired"),
        *[InvalidModel(reason, "a model") for reason in ModelReason],
        *[ReportRejected(reason, "a report") for reason in ReportReason],
        *[JobRefused(reason, "a job") for reason in JobReason],
        HelperUnavailable("busy"),
    ],
    ids=lambda failure: f"{type(failure).__name__}-{getattr(failure, 'reason', '')}",
)
def test_a_domain_error_arrives_as_itself(peer: Peer, failure: MaskedLarkError) -> None:
    peer.servicer.failure = failure
    with pytest.raises(type(failure)) as arrived:
        peer.call()
    assert getattr(arrived.value, "reason", None) == getattr(failure, "reason", None)
    assert str(failure) in str(arrived.value)


def test_a_bug_is_answered_without_any_detail(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    peer.servicer.failure = KeyError("a secret detail")
    with pytest.raises(JobRefused) as arrived:
        peer.call()
    assert arrived.value.reason is JobReason.PEER_FAILED  # it would fail again: nobody asks again
    assert "secret" not in str(arrived.value)
    assert "a secret detail" in caplog.text  # logged in full where it happened


def test_a_peer_that_is_full_says_when_to_come_again(peer: Peer) -> None:
    peer.servicer.failure = HelperUnavailable("no room", retry_after_s=2.5)
    with pytest.raises(HelperUnavailable, match="no room") as arrived:
        peer.call()
    assert arrived.value.retry_after_s == 2.5


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("2.5", 2.5),
        ("0", 0.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("-1", None),
        ("1e9", None),
    ],
)
def test_a_hint_that_makes_no_sense_is_none(told: str, expected: float | None) -> None:
    assert retry_hint_s(told) == expected


def test_only_what_is_worth_another_try_is_unavailable(peer: Peer) -> None:
    arrived = {code: _arriving(code) for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
    again = {code.name for code, error in arrived.items() if isinstance(error, HelperUnavailable)}
    assert again == {
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "ABORTED",
        "INTERNAL",
        "UNAUTHENTICATED",
    }  # the last two as the transport says them, without a kind
    refused = {code.name: error.reason for code, error in arrived.items() if isinstance(error, JobRefused)}
    assert refused["RESOURCE_EXHAUSTED"] is JobReason.TOO_LARGE  # gRPC itself, of a message over the limit
    assert refused["UNKNOWN"] is refused["UNIMPLEMENTED"] is JobReason.PEER_FAILED
    assert len(arrived) == len(again) + len(refused)


@pytest.mark.parametrize("limited", ["server", "client"])
@pytest.mark.parametrize(
    ("too_large", "reason"), [("answer", JobReason.BAD_ANSWER), ("request", JobReason.TOO_LARGE)]
)
def test_an_answer_over_the_limit_was_given_and_a_request_over_the_limit_was_not_heard(
    limited: str, too_large: str, reason: JobReason
) -> None:
    request, answer = (
        bytes(MAX_MESSAGE_BYTES + 1 if which == too_large else 1) for which in ("request", "answer")
    )
    limits = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]
    none = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(1), options=limits if limited == "server" else none)
    method = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with (
        grpc.insecure_channel(
            f"127.0.0.1:{port}", options=limits if limited == "client" else none
        ) as channel,
        pytest.raises(JobRefused) as refused,
        calling("helper 0"),
    ):
        channel.unary_unary("/s/m", None, None)(request, timeout=HANGS_S)
    server.stop(0).wait()
    assert refused.value.reason is reason


def test_a_reason_of_a_later_version_is_no_proof_that_nothing_was_charged() -> None:
    with pytest.raises(JobRefused) as refused, calling("helper 0"):
        raise _Failed(
            grpc.StatusCode.FAILED_PRECONDITION,
            (Item("maskedlark-kind", "JobRefused"), Item("maskedlark-reason", "tomorrow's")),
        )
    assert refused.value.reason is JobReason.BAD_ANSWER


def test_bytes_that_do_not_parse_are_not_worth_another_try(peer: Peer) -> None:
    with (
        make_channel(f"127.0.0.1:{peer.port}", None) as channel,
        pytest.raises(JobRefused) as refused,
        calling("helper 0"),
    ):
        channel.unary_unary("/maskedlark.v1.Helper/GetStatus", None, None)(b"\xff\xff", timeout=HANGS_S)
    assert refused.value.reason is JobReason.PEER_FAILED


class Item(NamedTuple):
    """One pair of metadata."""

    key: str
    value: str


class _Failed(grpc.RpcError):
    def __init__(
        self, code: grpc.StatusCode, trailing: tuple[Item, ...] = (), details: str = "details"
    ) -> None:
        self._code = code
        self._trailing = trailing
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[Any, ...]:
        return self._trailing


def _arriving(code: grpc.StatusCode) -> MaskedLarkError:
    with pytest.raises(MaskedLarkError) as arrived, calling("helper 0"):
        raise _Failed(code)
    return arrived.value


@pytest.mark.parametrize(
    ("called", "tried", "said"),
    [
        ("127.0.0.1:7001", "ipv4:127.0.0.1:7001", "there"),
        ("[::1]:7001", "ipv6:%5B::1%5D:7001", "there"),
        # Another address may have refused the certificate, which gRPC does not report
        ("localhost:7001", "ipv6:%5B::1%5D:7001", r"at \[::1\]:7001, the last of its addresses"),
        ("localhost:7001", "ipv4:127.0.0.1:7001", r"at 127\.0\.0\.1:7001, the last of its addresses"),
        ("localhost:7001", "ipv6:%1B%5B31m", r"at \\x1b\[31m, the last"),  # as a hostile server has it
    ],
)
def test_nothing_is_said_of_addresses_that_grpc_does_not_report(called: str, tried: str, said: str) -> None:
    details = f"failed to connect; last error: UNKNOWN: {tried}: Failed to connect: Connection refused"
    failed = _Failed(grpc.StatusCode.UNAVAILABLE, details=details)
    with (
        pytest.raises(HelperUnavailable) as refusal,
        calling(f"helper at {called}"),
    ):
        raise failed
    assert re.match(rf"helper at {re.escape(called)}: no server is listening {said}", str(refusal.value))
    assert ("any other one failed too" in str(refusal.value)) is (said != "there")


def test_a_peer_that_is_down_is_unavailable(peer: Peer) -> None:
    server, gone = serve(None)
    server.stop(0).wait()
    with pytest.raises(HelperUnavailable):
        gone.call()


def test_strangers_connections_take_no_more_files_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "MOST_CONNECTIONS", 8)
    server, peer = serve(None)
    try:
        with ExitStack() as opened:
            silent = [opened.enter_context(connect(("127.0.0.1", peer.port))) for _ in range(24)]
            await_closed(silent, 16)
        for _ in range(2):
            call_once_there_is_room(peer)  # those that have left are not counted
    finally:
        server.stop(0).wait()


def call_once_there_is_room(peer: Any) -> None:
    """Repeat a call while the server has not noticed yet that others have left."""
    for _ in range(10 * int(HANGS_S)):
        try:
            peer.call()
        except HelperUnavailable:
            sleep(0.1)
        else:
            return
    raise AssertionError("no room for a call")


def await_closed(connections: Sequence[socket.socket], count: int) -> None:
    """Wait until the server has closed so many connections."""
    is_open = {one.fileno(): one for one in connections}
    poll = select.poll()
    for number in is_open:
        poll.register(number, select.POLLIN)
    while len(connections) - len(is_open) < count:
        for number, _ in poll.poll(1_000 * HANGS_S):
            try:
                has_ended = not is_open[number].recv(1_024)
            except ConnectionError:
                has_ended = True
            if has_ended:
                poll.unregister(number)
                del is_open[number]


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True)]
)
def test_loopback_names(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "example.com", "", "127.0.0.1.example.com"])  # noqa: S104 # that it is refused
def test_plaintext_beyond_loopback_is_refused(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidTask, match="loopback"):
        make_channel(f"{host}:1", None)
    with pytest.raises(InvalidTask, match="loopback"):
        make_server(f"{host}:0", None, threads=1)


def trust(one: TlsFiles, *others: TlsFiles) -> None:
    one.trusted_authorities.write_bytes(b"".join(other.certificate.read_bytes() for other in others))


def parties(tmp_path: Path) -> tuple[TlsFiles, TlsFiles, TlsFiles]:
    made: list[TlsFiles] = []
    for name, hosts in (
        ("north", ("127.0.0.1", "localhost")),
        ("https://ads.example", ()),
        ("https://other.example", ()),
    ):
        folder = tmp_path / str(len(made))
        folder.mkdir(parents=True)
        made.append(write_certificate(folder, name=name, hosts=hosts, now=datetime.now(UTC)))
    return made[0], made[1], made[2]


def test_mutual_tls_lets_in_who_is_trusted_and_tells_its_origin(tmp_path: Path) -> None:
    helper, adserver, stranger = parties(tmp_path)
    trust(helper, adserver)
    trust(adserver, helper)
    trust(stranger, helper)
    server, secure = serve(helper)
    try:
        assert secure.call(adserver) == "https://ads.example"
        for outsider in (stranger, None):
            with pytest.raises(HelperUnavailable):
                secure.call(outsider)
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    ("who", "said"),
    [("client", "certificate has expired, and that each trusts"), ("server", "must renew it")],
)
def test_an_expired_certificate_is_not_let_in_and_its_owner_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, who: str, said: str
) -> None:
    helper, adserver, _ = parties(tmp_path)
    folder = tmp_path / "old"
    folder.mkdir()
    then = datetime.now(UTC) - timedelta(days=10)
    old = write_certificate(folder, name="https://ads.example", hosts=("127.0.0.1",), now=then, days=5)
    caller, answerer = (old, helper) if who == "client" else (adserver, old)
    trust(answerer, caller)
    trust(caller, answerer)
    server, secure = serve(answerer)
    assert caplog.text.count("(expired), then peers refuse it") == (who == "server")
    try:
        with pytest.raises(HelperUnavailable, match=said):
            secure.call(caller)
    finally:
        server.stop(0).wait()
    assert "(expired), then peers refuse it: `certificate renew`" in caplog.text


def test_private_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, name="north", now=NOW)
    assert files.private_key.stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        write_certificate(tmp_path, name="north", now=NOW)


def test_renewed_certificates_are_used_on_both_sides_without_a_restart(tmp_path: Path) -> None:
    helper, adserver, _ = parties(tmp_path)
    trust(helper, adserver)
    trust(adserver, helper)
    server, secure = serve(helper)
    channel = RenewedChannel(f"127.0.0.1:{secure.port}", adserver)

    def call() -> str:
        with calling("helper 0"):
            return str(
                helper_pb2_grpc.HelperStub(channel.current())
                .GetStatus(helper_pb2.StatusRequest(), timeout=HANGS_S)
                .name
            )

    try:
        assert call() == "https://ads.example"
        first = channel.current()
        assert channel.current() is first
        for folder, old in ((tmp_path / "new helper", helper), (tmp_path / "new ad server", adserver)):
            folder.mkdir()
            new = write_certificate(
                folder, name="https://new.example", hosts=("127.0.0.1",), now=datetime.now(UTC)
            )
            new.certificate.replace(old.certificate)
            assert call()  # the certificate came before its key: what was there serves on
            new.private_key.replace(old.private_key)
        trust(helper, adserver)
        trust(adserver, helper)
        assert call() == "127.0.0.1,https://new.example"
        stranger = parties(tmp_path / "others")[1]
        trust(stranger, helper)
        with pytest.raises(HelperUnavailable):
            secure.call(stranger)
    finally:
        channel.close()
        server.stop(0).wait()


def test_a_server_that_trusts_nobody_does_not_start_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = parties(tmp_path)[0]
    with pytest.raises(InvalidSetting, match=f"^{files.trusted_authorities} is empty, so no peer is trusted"):
        make_server("127.0.0.1:0", files, threads=1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("server_has", "client_has", "host", "said"),
    [
        ("north", "stranger", "localhost", "the connection was closed: check that the server is running"),
        ("north", "distrustful", "localhost", "its certificate is none of those that are trusted here"),
        ("north", "ads", "127.0.0.1", "its certificate is not for this host name"),
        (None, "ads", "localhost", "what answers there does not use TLS"),
        ("north", None, "localhost", "the connection was closed: check that the server is running"),
    ],
)
def test_why_no_call_was_made_begins_with_plain_words(
    tmp_path: Path, server_has: str | None, client_has: str | None, host: str, said: str
) -> None:
    made: dict[str | None, TlsFiles | None] = {None: None}
    for name in ("north", "ads", "stranger", "distrustful"):
        (tmp_path / name).mkdir()
        made[name] = write_certificate(tmp_path / name, name="localhost", now=datetime.now(UTC))
    north, ads, stranger, distrustful = (one for one in made.values() if one)
    trust(north, ads, distrustful)
    trust(ads, north)
    trust(stranger, north)
    trust(distrustful, stranger)
    server, port = make_server("127.0.0.1:0", made[server_has], threads=1)
    server.start()
    try:
        with (
            make_channel(f"{host}:{port}", made[client_has]) as channel,
            pytest.raises(HelperUnavailable) as failed,
            calling("helper 0", "; trust advice"),
        ):
            helper_pb2_grpc.HelperStub(channel).GetStatus(helper_pb2.StatusRequest(), timeout=HANGS_S)
    finally:
        server.stop(0).wait()
    told = str(failed.value)
    assert told.startswith(f"helper 0: {said}"), told
    # What gRPC says comes last, and only where it is not known which side refused
    is_closed = "connection was closed" in said
    assert ("; trust advice (gRPC: " in told, "gRPC" in told) == (is_closed, is_closed)
    assert told.endswith("; trust advice") is ("none of those" in said)


def test_a_change_of_the_files_is_logged_once_for_all_that_read_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    helper, adserver, other = parties(tmp_path)
    trust(helper, adserver)
    trust(adserver, helper)
    server, secure = serve(helper)
    caplog.set_level("INFO", "maskedlark.rpc.tls_files")
    try:
        secure.call(adserver)
        assert "reloaded" not in caplog.text
        trust(helper, adserver, other)
        for _ in range(2):  # each a handshake and a call, which both read the files
            secure.call(adserver)
        assert caplog.text.count("reloaded the TLS files") == 1
    finally:
        server.stop(0).wait()


def test_trust_that_is_emptied_lets_nobody_in_and_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    helper, adserver, _ = parties(tmp_path)
    trust(helper, adserver)
    trust(adserver, helper)
    server, secure = serve(helper)
    channel = RenewedChannel(f"127.0.0.1:{secure.port}", adserver)
    stub = helper_pb2_grpc.HelperStub(channel.current())

    def call() -> None:
        """Call over the connection that is open, and over a new one."""
        with calling("helper 0"):
            stub.GetStatus(helper_pb2.StatusRequest(), timeout=HANGS_S)
        secure.call(adserver)

    try:
        call()
        helper.trusted_authorities.write_bytes(b"no certificate")
        call()
        assert f"the previous ones stay in use: {helper.trusted_authorities} is not valid" in caplog.text
        for content in (b"", b"no certificate"):  # after which the previous ones are nobody's
            caplog.clear()
            helper.trusted_authorities.write_bytes(content)
            with pytest.raises(HelperUnavailable, match=r"no longer trusted.*calls go on once"):
                call()
            with pytest.raises(HelperUnavailable, match="each trusts the other"):
                secure.call(adserver)
            assert ("the previous ones stay in use" in caplog.text) == bool(content)
            assert (f"{helper.trusted_authorities} is empty: no peer is trusted" in caplog.text) != bool(
                content
            )
        trust(helper, adserver)
        call()
    finally:
        channel.close()
        server.stop(0).wait()


@pytest.mark.parametrize("broken", ["certificate", "private_key", "trusted_authorities"])
def test_tls_files_that_are_not_pem_are_refused(tmp_path: Path, broken: str) -> None:
    files = parties(tmp_path)[0]
    path = getattr(files, broken)
    path.write_bytes(b"not PEM")
    with pytest.raises(InvalidTask, match=f"^{path} is not valid: expected .* in PEM"):
        files.read()


def test_a_certificate_of_another_key_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    helper, adserver, _ = parties(tmp_path)
    with pytest.raises(InvalidTask, match="does not belong to"):
        replace(helper, certificate=adserver.certificate).read()
    with pytest.raises(InvalidTask, match=f"{tmp_path / 'absent'} does not exist: restore it"):
        replace(helper, certificate=tmp_path / "absent").read()
    assert "PRIVATE" not in repr(helper.read())


REPORT = Report(
    task_id=bytes(32),
    report_id=bytes(16),
    time_bucket=7,
    shares=(SealedShare(key_id=1, ciphertext=b"a"), SealedShare(key_id=2, ciphertext=b"bb")),
)


def test_a_report_survives_the_wire() -> None:
    assert wire.decode_report(wire.encode_report(REPORT)) == REPORT


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"\xff\xff\xff", ReportReason.MALFORMED),
        (b"", ReportReason.MALFORMED),
        (wire.encode_report(REPORT)[:-3], ReportReason.MALFORMED),
        (
            report_pb2.Report(task_id=bytes(32), share_0=report_pb2.SealedShare()).SerializeToString(),
            ReportReason.MALFORMED,
        ),
        (bytes(wire.MAX_REPORT_BYTES + 1), ReportReason.WRONG_LENGTH),
    ],
)
def test_bytes_that_are_no_report_are_a_typed_error(encoded: bytes, reason: ReportReason) -> None:
    with pytest.raises(ReportRejected) as rejection:
        wire.decode_report(encoded)
    assert rejection.value.reason is reason


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 30])
def test_chunks_join_to_the_whole(length: int) -> None:
    encoded = bytes(range(length))
    pieces = list(wire.chunks(encoded, 10))
    assert wire.join(pieces, limit=length, what="a model") == encoded
    assert all(len(piece) <= 10 for piece in pieces)
    assert pieces


def test_joining_past_the_limit_stops_at_once() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(10)

    with pytest.raises(JobRefused) as refusal:
        wire.join(endless(), limit=35, what="a model")
    assert refusal.value.reason is JobReason.TOO_LARGE
    assert taken == 4
