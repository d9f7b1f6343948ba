"""Streams over gRPC, from anybody.

What they make the ad server hold is bounded, however many stop half way.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from threading import Event

import grpc
import httpx
import pytest
from sqlalchemy import Engine

from adserver.ingest.intake import Intake
from adserver.records.server_settings import IntakeSettings
from adserver.serving import intake_servers
from adserver.serving.intake_servers import Addresses, running_ingest
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.rpc.wire import MAX_REPORT_BYTES, report_to_message
from maskedlark.runtime.database import open_database
from protos import ingest_pb2_grpc, report_pb2
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S

WIDE = world(num_features=60_000)
[ONE] = reports(WIDE, examples(WIDE.task, 1))
REPORT_BYTES = sum(len(share.ciphertext) for share in ONE.shares)
MIB = 1 << 20


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    TaskStore(opened).add(WIDE.bundle, created_at=NOW)
    yield opened
    opened.dispose()


@pytest.fixture
def addresses(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Addresses]:
    monkeypatch.setattr(intake_servers, "_GRPC_THREADS", 1)
    with running_ingest(engine, IntakeSettings(), tls=None) as opened:
        yield opened


def test_a_stream_of_wide_reports_holds_one_mebibyte(engine: Engine) -> None:
    intake, held = Intake(TaskStore(engine), ReportStore(engine), lambda: 0.0), []

    def coming() -> Iterator[report_pb2.Report]:
        for number in range(40):
            held.append(REPORT_BYTES * (number - intake.counts.accepted))
            yield report_to_message(replace(ONE, report_id=number.to_bytes(16, "big")))

    assert intake.take_all(coming()).accepted == 40
    assert 0 < max(held) < MIB


def test_a_stream_that_finds_no_thread_is_refused_and_not_read(addresses: Addresses) -> None:
    over, sent = Event(), 0

    def silent() -> Iterator[report_pb2.Report]:
        yield report_pb2.Report()  # counted as malformed, and then nothing
        over.wait(HANGS_S)

    whole = report_to_message(replace(ONE, report_id=os.urandom(16)))

    def eager() -> Iterator[report_pb2.Report]:
        nonlocal sent
        for message in repeat(whole, 100):
            sent += 1
            yield message

    with grpc.insecure_channel(addresses.grpc) as first, grpc.insecure_channel(addresses.grpc) as second:
        holding = ingest_pb2_grpc.IngestStub(first).Submit.future(silent(), timeout=HANGS_S)
        while not httpx.get(f"http://{addresses.http}/v1/counts", timeout=HANGS_S).json()["rejected"]:
            assert not holding.done()
        waiting = ingest_pb2_grpc.IngestStub(second).Submit.future(eager(), timeout=HANGS_S)
        assert settled(lambda: sent) * REPORT_BYTES < MIB
        with pytest.raises(grpc.RpcError) as refused:
            waiting.result()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        over.set()
        holding.result()
        again = ingest_pb2_grpc.IngestStub(second).Submit(
            repeat(whole, 100), timeout=HANGS_S, wait_for_ready=True
        )
        assert again.accepted == 1


def settled(count: Callable[[], int]) -> int:
    """What a count has come to once it stays the same for half a second."""
    now, since = count(), time.monotonic()
    while not now or time.monotonic() - since < 0.5:
        if count() != now:
            now, since = count(), time.monotonic()
        Event().wait(0.01)
    return now


def test_a_message_longer_than_any_report_is_refused(addresses: Addresses) -> None:
    with grpc.insecure_channel(addresses.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        ingest_pb2_grpc.IngestStub(channel).Submit(
            iter([report_pb2.Report(report_id=bytes(MAX_REPORT_BYTES + 64))]), timeout=HANGS_S
        )
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
