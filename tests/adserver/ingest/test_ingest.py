"""The two front doors: what is acknowledged is stored once, what is wrong is refused by name and leaves
nothing.
"""

import contextlib
import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select

from adserver.ingest import http_app as http_app_module
from adserver.ingest import task_pages as task_pages_module
from adserver.ingest.intake import Intake, IntakeCounts
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_servers import Addresses, running_ingest
from adserver.store import tasks as tasks_module
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.schema import reports
from adserver.store.tasks import TaskStore
from maskedlark.canonical import decode, encode
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.reports.task import TaskBundle
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.faults import calling
from maskedlark.rpc.transport import TrustOnly, make_channel
from maskedlark.rpc.wire import MAX_REPORT_BYTES, decode_report, encode_report, report_to_message
from maskedlark.runtime.database import open_database, reading
from protos import ingest_pb2, ingest_pb2_grpc, report_pb2
from tests import builders
from tests.builders import world
from tests.patience import HANGS_S
from tests.silent_streams import silent_streams

_KNOWN = world()
_SEALED = builders.reports(_KNOWN, builders.examples(_KNOWN.task, 12))
_GOOD = _SEALED[0]
_SHORT = replace(_GOOD.shares[0], ciphertext=_GOOD.shares[0].ciphertext[:-1])
_WRONG: dict[ReportReason, list[Report]] = {
    ReportReason.WRONG_TASK: [replace(_GOOD, task_id=bytes(32)), replace(_GOOD, task_id=b"")],
    ReportReason.MALFORMED: [
        replace(_GOOD, report_id=_GOOD.report_id[:-1]),
        replace(_GOOD, report_id=b""),
        replace(_GOOD, shares=(replace(_GOOD.shares[0], key_id=256), _GOOD.shares[1])),
    ],
    ReportReason.OUTSIDE_TASK_PERIOD: [
        replace(_GOOD, time_bucket=0),
        replace(_GOOD, time_bucket=(1 << 64) - 1),
    ],
    ReportReason.WRONG_LENGTH: [
        replace(_GOOD, shares=(_SHORT, _GOOD.shares[1])),
        replace(_GOOD, shares=(_GOOD.shares[0], SealedShare(key_id=1, ciphertext=bytes(50_000)))),
        replace(_GOOD, shares=(SealedShare(key_id=1, ciphertext=b""), _GOOD.shares[1])),
    ],
}
_CASES = [(reason, wrong) for reason, wrongs in _WRONG.items() for wrong in wrongs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A running intake with its database."""

    engine: Engine
    addresses: Addresses

    def url(self, path: str) -> str:
        return f"http://{self.addresses.http}{path}"

    def post(self, body: bytes, path: str = "/v1/reports") -> httpx.Response:
        return httpx.post(self.url(path), content=body, timeout=HANGS_S)

    def stored(self) -> int:
        with reading(self.engine) as connection:
            return connection.execute(select(func.count()).select_from(reports)).scalar_one()


def _engine(folder: Path) -> Engine:
    engine = open_database(default_url(folder))
    create_tables(engine)
    TaskStore(engine).add(_KNOWN.bundle, created_at=builders.NOW)
    return engine


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    engine = _engine(tmp_path)
    with running_ingest(engine, IntakeSettings(), tls=None) as addresses:
        yield Door(engine=engine, addresses=addresses)
    engine.dispose()


def _submit(door: Door, messages: list[report_pb2.Report]) -> tuple[int, int, dict[str, int]]:
    with make_channel(door.addresses.grpc, None) as channel:
        reply = ingest_pb2_grpc.IngestStub(channel).Submit(iter(messages), timeout=HANGS_S)
    return reply.accepted, reply.duplicates, dict(reply.rejected)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    picks=st.lists(
        st.one_of(st.sampled_from(_SEALED), st.sampled_from([wrong for _, wrong in _CASES])), max_size=30
    )
)
def test_counts_and_stored_rows_are_what_a_set_of_ids_would_give(
    tmp_path_factory: pytest.TempPathFactory, picks: list[Report]
) -> None:
    engine = _engine(tmp_path_factory.mktemp("intake"))
    intake = Intake(TaskStore(engine), ReportStore(engine), lambda: 0.0)
    counts = intake.take_all(report_to_message(report) for report in picks)
    good = [report.report_id for report in picks if report in _SEALED]
    reasons = [
        next(reason for reason, wrong in _CASES if wrong == report)
        for report in picks
        if report not in _SEALED
    ]
    assert counts == IntakeCounts(
        accepted=len(set(good)), duplicates=len(good) - len(set(good)), rejected=Counter(reasons)
    )
    assert counts == intake.counts
    assert ReportStore(engine).counts(_KNOWN.task.task_id).waiting == len(set(good))
    engine.dispose()


def test_a_stream_longer_than_a_transaction_is_stored_whole(door: Door) -> None:
    many = [replace(_GOOD, report_id=number.to_bytes(16, "big")) for number in range(2_345)]
    messages = [report_to_message(report) for report in many]
    assert _submit(door, [*messages, *messages[:7]]) == (2_345, 7, {})
    assert door.stored() == 2_345


def _submit_batches(door: Door, *batches: bytes) -> tuple[int, int, dict[str, int]]:
    messages = [ingest_pb2.EncodedBatch(reports=batch) for batch in batches]
    with make_channel(door.addresses.grpc, None) as channel:
        reply = ingest_pb2_grpc.IngestStub(channel).SubmitBatches(iter(messages), timeout=HANGS_S)
    return reply.accepted, reply.duplicates, dict(reply.rejected)


def _batch(reports: list[Report]) -> bytes:
    return report_pb2.ReportBatch(reports=map(report_to_message, reports)).SerializeToString()


def test_batches_over_grpc_are_answered_for_like_single_reports(door: Door) -> None:
    wrong = [report for _, report in _CASES]
    expected = Counter(reason.value for reason, _ in _CASES)
    answer = _submit_batches(door, _batch(wrong + _SEALED), b"", _batch(_SEALED[:3]))
    assert answer == (len(_SEALED), 3, dict(expected))
    assert door.stored() == len(_SEALED)


@pytest.mark.parametrize(
    "batch",
    [b"\x0a\x00" * 10_000, b"\x0a\x05abc", b"\x12\x00", b"\xff"],
    ids=["empty", "cut", "field", "noise"],
)
def test_what_is_no_batch_over_grpc_is_refused_and_not_stored(door: Door, batch: bytes) -> None:
    with pytest.raises(ReportRejected, match="not a batch"), calling("it"):
        _submit_batches(door, batch)
    assert door.stored() == 0


def test_what_a_stream_gets_acknowledged_is_there_after_the_server_is_gone(tmp_path: Path) -> None:
    engine = _engine(tmp_path)
    with running_ingest(engine, IntakeSettings(), tls=None) as addresses:
        assert _submit(
            Door(engine=engine, addresses=addresses), [report_to_message(report) for report in _SEALED]
        )[0] == len(_SEALED)
    engine.dispose()
    again = open_database(default_url(tmp_path))
    assert ReportStore(again).counts(_KNOWN.task.task_id).waiting == len(_SEALED)
    again.dispose()


def test_a_stream_goes_on_after_each_kind_of_wrong_report(door: Door) -> None:
    messages = [report_to_message(report) for _, report in _CASES] + [
        report_to_message(report) for report in _SEALED
    ]
    one_share = report_to_message(_GOOD)
    one_share.ClearField("share_1")
    accepted, duplicates, rejected = _submit(door, [one_share, *messages])
    expected = Counter(reason.value for reason, _ in _CASES) + Counter(malformed=1)
    assert (accepted, duplicates, rejected) == (len(_SEALED), 0, dict(expected))
    assert door.stored() == len(_SEALED)


def test_a_stream_that_breaks_off_stores_no_report_twice_when_it_is_sent_again(door: Door) -> None:
    messages = [
        report_to_message(replace(_GOOD, report_id=number.to_bytes(16, "big"))) for number in range(1_500)
    ]

    def breaking() -> Iterator[report_pb2.Report]:
        yield from messages[:1_200]
        raise RuntimeError("the browser's proxy dies")

    with make_channel(door.addresses.grpc, None) as channel, pytest.raises(grpc.RpcError):
        ingest_pb2_grpc.IngestStub(channel).Submit(breaking(), timeout=HANGS_S)
    accepted, duplicates, rejected = _submit(door, messages)
    assert (accepted + duplicates, rejected) == (1_500, {})
    assert door.stored() == 1_500


def test_of_200_concurrent_submissions_of_one_report_exactly_one_is_accepted(door: Door) -> None:
    body = encode_report(_GOOD)
    with (
        httpx.Client(limits=httpx.Limits(max_connections=50), timeout=HANGS_S) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        answers = list(pool.map(lambda _: client.post(door.url("/v1/reports"), content=body), range(200)))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 199}
    assert door.stored() == 1


def test_concurrent_streams_of_the_same_reports_accept_each_once(door: Door) -> None:
    messages = [
        report_to_message(replace(_GOOD, report_id=number.to_bytes(16, "big"))) for number in range(300)
    ]
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: _submit(door, messages), range(6)))
    assert sum(accepted for accepted, _, _ in replies) == 300
    assert sum(duplicates for _, duplicates, _ in replies) == 5 * 300
    assert door.stored() == 300


def test_a_report_is_created_once_and_a_retry_is_told_that_it_is_stored(door: Door) -> None:
    answers = [door.post(encode_report(_GOOD)) for _ in range(2)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [
        (201, {"result": "accepted"}),
        (200, {"result": "duplicate"}),
    ]


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_report_with_a_known_id_and_another_content_changes_nothing_of_the_other(
    door: Door, comes_first: bool
) -> None:
    forged = replace(_SEALED[1], report_id=_GOOD.report_id)
    both = [forged, _GOOD] if comes_first else [_GOOD, forged]
    assert [door.post(encode_report(one)).status_code for one in both * 2] == [201, 201, 200, 200]
    with reading(door.engine) as connection:
        stored = connection.execute(select(reports.c.ciphertext_0).order_by(reports.c.sequence)).scalars()
        assert list(stored) == [one.shares[0].ciphertext for one in both]


_HTTP_STATUS = {
    ReportReason.MALFORMED: 400,
    ReportReason.WRONG_TASK: 404,
    ReportReason.OUTSIDE_TASK_PERIOD: 422,
    ReportReason.WRONG_LENGTH: 422,
}


@pytest.mark.parametrize(("reason", "wrong"), _CASES)
def test_a_wrong_report_is_refused_by_its_reason_and_leaves_nothing(
    door: Door, reason: ReportReason, wrong: Report
) -> None:
    answer = door.post(encode_report(wrong))
    assert (answer.status_code, answer.json()["error"], answer.json()["reason"]) == (
        _HTTP_STATUS[reason],
        "ReportRejected",
        reason.value,
    )
    assert door.stored() == 0
    assert httpx.get(door.url("/v1/counts"), timeout=HANGS_S).json() == {
        "accepted": 0,
        "duplicates": 0,
        "rejected": {reason.value: 1},
    }


@given(length=st.integers(0, len(encode_report(_GOOD)) - 1))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_report_is_rejected_and_leaves_nothing(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    engine = _engine(tmp_path_factory.mktemp("truncated"))
    intake = Intake(TaskStore(engine), ReportStore(engine), lambda: 0.0)
    with pytest.raises(ReportRejected):
        intake.take(decode_report(encode_report(_GOOD)[:length]))
    assert ReportStore(engine).counts(_KNOWN.task.task_id).waiting == 0
    engine.dispose()


def test_a_body_that_is_no_message_is_malformed_and_counted(door: Door) -> None:
    answer = door.post(b"\xff" * 40)
    assert (answer.status_code, answer.json()["reason"]) == (400, "malformed")
    assert httpx.get(door.url("/v1/counts"), timeout=HANGS_S).json()["rejected"] == {"malformed": 1}


@pytest.mark.parametrize("path", ["/v1/reports", "/v1/reports/batch"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(door: Door, path: str) -> None:
    host, port = door.addresses.http.split(":")
    with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {1 << 40}\r\n\r\nx".encode()
        )
        answer = b"".join(
            iter(lambda: connection.recv(4096), b"")
        )  # to its end: the server does not wait for the rest
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["reason"] == "wrong_length"
    assert door.stored() == 0


def test_a_body_of_undeclared_length_is_refused_once_it_passes_the_limit(door: Door) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(2_000):
            sent += 1
            yield bytes(1 << 16)

    with contextlib.suppress(
        httpx.WriteError, httpx.ReadError
    ):  # the server hangs up while the client is still sending
        assert httpx.post(door.url("/v1/reports"), content=pieces(), timeout=HANGS_S).status_code == 413
    assert sent * (1 << 16) < 50 * MAX_REPORT_BYTES
    assert door.stored() == 0


def test_a_batch_is_answered_with_counts(door: Door) -> None:
    batch = report_pb2.ReportBatch(
        reports=[
            report_to_message(report) for report in [*_SEALED, _GOOD, _WRONG[ReportReason.WRONG_TASK][0]]
        ]
    )
    answer = door.post(batch.SerializeToString(), "/v1/reports/batch")
    assert (answer.status_code, answer.json()) == (
        200,
        {"accepted": len(_SEALED), "duplicates": 1, "rejected": {"wrong_task": 1}},
    )


def test_a_batch_that_is_no_message_stores_nothing(door: Door) -> None:
    body = report_pb2.ReportBatch(
        reports=[report_to_message(report) for report in _SEALED]
    ).SerializeToString()
    answer = door.post(body[:-3], "/v1/reports/batch")
    assert (answer.status_code, answer.json()["reason"]) == (400, "malformed")
    assert door.stored() == 0


def test_a_task_is_served_as_the_canonical_bytes_that_browsers_verify(door: Door) -> None:
    answer = httpx.get(door.url(f"/v1/tasks/{_KNOWN.task.task_id.hex()}"), timeout=HANGS_S)
    bundle = decode(TaskBundle, answer.content)
    bundle.verify()
    assert bundle == _KNOWN.bundle
    listed = httpx.get(door.url("/v1/tasks"), timeout=HANGS_S).json()
    assert listed == {
        "tasks": [
            {"task_id": _KNOWN.task.task_id.hex(), "name": "conversions", "origin": "https://ads.example"}
        ],
        "next": None,
    }


def test_all_tasks_are_listed_in_pages_and_each_is_decoded_once(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages_module, "TASKS_A_PAGE", 2)
    monkeypatch.setattr(task_pages_module, "FRESH_S", 0.0)
    store = TaskStore(door.engine)
    made = [world(name=f"task {number}") for number in range(4)]
    for number, one in enumerate(made):
        store.add(one.bundle, created_at=builders.NOW + 1 + number // 2)  # two at one moment
    decoded: list[object] = []

    def counted(row: Any) -> Any:
        decoded.append(row)
        return read_row(row)

    read_row = tasks_module._read_row
    monkeypatch.setattr(tasks_module, "_read_row", counted)
    for _ in range(3):
        pages, after = [], ""
        while after is not None:
            page = httpx.get(door.url("/v1/tasks"), params={"after": after}, timeout=HANGS_S).json()
            pages.append(page["tasks"])
            after = page["next"]
        assert [len(page) for page in pages] == [2, 2, 1]
        ids = [one["task_id"] for page in pages for one in page]
        assert sorted(ids) == sorted(one.task.task_id.hex() for one in [*made, _KNOWN])
        assert ids[-1] == _KNOWN.task.task_id.hex()  # the oldest
    assert len(decoded) == 5


@pytest.mark.parametrize("after", ["x", "%00", "AAAA", "bmFuIHp6"])
def test_a_cursor_that_no_page_gave_is_refused(door: Door, after: str) -> None:
    answer = httpx.get(door.url(f"/v1/tasks?after={after}"), timeout=HANGS_S)
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")


def test_the_encoder_that_a_task_names_is_served_as_its_canonical_bytes(door: Door) -> None:
    encoder = fit({name: ["1", "2"] for name in "abcd"}, FitSettings())
    named = world(encoder=encoder.digest).bundle
    TaskStore(door.engine).add(named, created_at=builders.NOW, encoder=encoder)
    answer = httpx.get(door.url(f"/v1/tasks/{named.task.task_id.hex()}/encoder"), timeout=HANGS_S)
    assert answer.content == encode(encoder)
    without = httpx.get(door.url(f"/v1/tasks/{_KNOWN.task.task_id.hex()}/encoder"), timeout=HANGS_S)
    assert (without.status_code, without.json()["message"]) == (404, "no such task, or it names no encoder")


@pytest.mark.parametrize("path", ["/v1/tasks/" + "00" * 32, "/v1/tasks/xyz", "/v1/tasks/00", "/nothing"])
def test_what_is_not_here_is_404_in_json(door: Door, path: str) -> None:
    answer = httpx.get(door.url(path), timeout=HANGS_S)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "reason", "message"}


def test_a_task_made_by_another_process_is_known_at_once(door: Door) -> None:
    other = world()
    assert (
        door.post(encode_report(builders.reports(other, builders.examples(other.task, 1))[0])).status_code
        == 404
    )
    TaskStore(door.engine).add(other.bundle, created_at=builders.NOW)
    assert (
        door.post(encode_report(builders.reports(other, builders.examples(other.task, 1))[0])).status_code
        == 201
    )


def test_health_is_ok_while_the_database_answers(door: Door) -> None:
    assert httpx.get(door.url("/healthz"), timeout=HANGS_S).status_code == 200


def test_a_bug_is_answered_without_detail(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    reports.drop(door.engine)
    answer = door.post(encode_report(_GOOD))
    assert answer.status_code == 500
    assert json.loads(answer.content) == {
        "error": "Internal",
        "reason": "internal",
        "message": "internal error",
    }
    assert "no such table" in caplog.text


def test_without_tls_nothing_listens_where_others_can_reach_it(tmp_path: Path) -> None:
    engine = _engine(tmp_path)
    for grpc_listen, http_listen in (("0.0.0.0:0", "127.0.0.1:0"), ("127.0.0.1:0", "0.0.0.0:0")):
        with (
            pytest.raises(InvalidTask, match="loopback"),
            running_ingest(
                engine, IntakeSettings(grpc_listen=grpc_listen, http_listen=http_listen), tls=None
            ),
        ):
            pass
    engine.dispose()


def test_counts_are_logged_each_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, now = _engine(tmp_path), [0.0]
    intake = Intake(TaskStore(engine), ReportStore(engine), lambda: now[0])
    with caplog.at_level("INFO"):
        intake.take(_SEALED[0])
        assert "accepted" not in caplog.text
        now[0] = 61.0
        intake.take(_SEALED[1])
    assert "2 accepted, 0 duplicates" in caplog.text
    engine.dispose()


def test_a_body_that_comes_too_slowly_is_given_up(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app_module, "BODY_DEADLINE_S", 0.05)
    host, port = door.addresses.http.split(":")
    with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
        connection.sendall(
            f"POST /v1/reports HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\nslow".encode()
        )
        assert b"".join(iter(lambda: connection.recv(4096), b"")).startswith(b"HTTP/1.1 408")


def test_an_answer_does_not_wait_for_the_browsers_delayed_acknowledgement(door: Door) -> None:
    """40 ms each at least, if Nagle's algorithm were on: an answer is written in two parts."""
    body, took = encode_report(_GOOD), []
    with httpx.Client(timeout=HANGS_S) as client:
        for _ in range(100):
            began = time.monotonic()
            client.post(door.url("/v1/reports"), content=body)
            took.append(time.monotonic() - began)
    assert min(took) < 0.035


def test_with_tls_browsers_know_the_server_and_need_no_certificate(tmp_path: Path) -> None:
    engine, folder = _engine(tmp_path), tmp_path / "keys"
    folder.mkdir()
    files = write_certificate(folder, name="https://ads.example", hosts=("127.0.0.1",), now=datetime.now(UTC))
    with running_ingest(engine, IntakeSettings(), tls=files) as addresses:
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        assert (
            httpx.post(
                f"https://{addresses.http}/v1/reports",
                content=encode_report(_GOOD),
                verify=trusting,
                timeout=HANGS_S,
            ).status_code
            == 201
        )
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"https://{addresses.http}/healthz", timeout=HANGS_S)
        with make_channel(addresses.grpc, TrustOnly(trusted_authorities=files.certificate)) as channel:
            assert (
                ingest_pb2_grpc.IngestStub(channel)
                .Submit(iter([report_to_message(_GOOD)]), timeout=HANGS_S)
                .duplicates
                == 1
            )
        with make_channel(addresses.grpc, None) as channel, pytest.raises(grpc.RpcError):
            ingest_pb2_grpc.IngestStub(channel).Submit(iter([report_to_message(_GOOD)]), timeout=5)
    engine.dispose()


def test_a_renewed_certificate_is_shown_to_the_next_browser_without_a_restart(tmp_path: Path) -> None:
    engine = _engine(tmp_path)
    folders = [tmp_path / name for name in ("served", "renewed")]
    for folder in folders:
        folder.mkdir()
    served, renewed = (
        write_certificate(one, name="https://ads.example", hosts=("127.0.0.1",), now=datetime.now(UTC))
        for one in folders
    )
    with running_ingest(engine, IntakeSettings(), tls=served) as addresses:
        before = ssl.create_default_context(cafile=str(served.certificate))
        assert (
            httpx.get(f"https://{addresses.http}/healthz", verify=before, timeout=HANGS_S).status_code == 200
        )
        renewed.certificate.replace(
            served.certificate
        )  # for a moment it does not fit the key: what was there serves on
        assert (
            httpx.get(f"https://{addresses.http}/healthz", verify=before, timeout=HANGS_S).status_code == 200
        )
        renewed.private_key.replace(served.private_key)
        after = ssl.create_default_context(cafile=str(served.certificate))
        assert (
            httpx.get(f"https://{addresses.http}/healthz", verify=after, timeout=HANGS_S).status_code == 200
        )
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"https://{addresses.http}/healthz", verify=before, timeout=HANGS_S)
        with make_channel(addresses.grpc, TrustOnly(trusted_authorities=served.certificate)) as channel:
            assert (
                ingest_pb2_grpc.IngestStub(channel)
                .Submit(iter([report_to_message(_GOOD)]), timeout=HANGS_S)
                .accepted
                == 1
            )
    engine.dispose()


def test_silent_streams_of_one_address_get_half_of_the_threads(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    served, engine = write_certificate(folder, name="localhost", now=datetime.now(UTC)), _engine(tmp_path)
    browser = TrustOnly(trusted_authorities=served.certificate)
    with running_ingest(
        engine, IntakeSettings(grpc_listen="localhost:0", http_listen="localhost:0"), tls=served
    ) as addresses:
        method, half = "/maskedlark.v1.Ingest/Submit", 32
        with (
            silent_streams(addresses.grpc, browser, method=method, count=500, expected_open=half) as silence,
            make_channel(addresses.grpc, browser) as channel,
        ):
            # a slow machine sees some ended for their silence, and others in their place
            assert silence.ended["RESOURCE_EXHAUSTED"] > (500 - half) / 2, silence.ended
            health = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=HANGS_S
            )
            assert health.status == health_pb2.HealthCheckResponse.SERVING
    engine.dispose()
