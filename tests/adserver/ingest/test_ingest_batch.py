"""A batch at the HTTP door costs what its bytes cost.

No body makes the ad server hold, or compute, many times more.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from adserver.ingest import http_app
from adserver.ingest.http_app import MAX_BATCH_BYTES
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_servers import running_ingest
from adserver.store.database import create_tables, default_url
from adserver.store.tasks import TaskStore
from maskedlark.rpc.wire import encode_report, report_to_message
from maskedlark.runtime.database import open_database
from protos import report_pb2
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S

WORLD = world()
GOOD = reports(WORLD, examples(WORLD.task, 1))[0]


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    TaskStore(engine).add(WORLD.bundle, created_at=NOW)
    with running_ingest(engine, IntakeSettings(), tls=None) as addresses:
        yield f"http://{addresses.http}"
    engine.dispose()


def post(url: str, body: bytes) -> httpx.Response:
    return httpx.post(f"{url}/v1/reports/batch", content=body, timeout=HANGS_S)


def test_a_body_full_of_empty_reports_is_refused_at_once_and_takes_no_memory_to_speak_of(url: str) -> None:
    hostile = b"\x0a\x00" * (MAX_BATCH_BYTES // 2)
    post(url, hostile[:1000])  # what the first request loads
    before, most, is_over = resident_bytes(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.002):
            most[0] = max(most[0], resident_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.process_time()
    answer = post(url, hostile)
    took = time.process_time() - began
    is_over.set()
    watching.join()
    assert (answer.status_code, answer.json()["reason"]) == (400, "malformed")
    assert took < 5  # parsed whole and taken one by one, it was half a minute
    assert (
        most[0] - before < 100 << 20
    )  # the body, at the client and at the server, twice; it was 360 MiB more


def test_a_batch_is_read_off_the_event_loop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in: list[str] = []

    def watched(body: bytes) -> Iterator[report_pb2.Report]:
        read_in.append(threading.current_thread().name)
        return iter(report_pb2.ReportBatch.FromString(body).reports)

    monkeypatch.setattr(http_app, "reports_in", watched)
    assert (
        post(url, report_pb2.ReportBatch(reports=[report_to_message(GOOD)]).SerializeToString()).json()[
            "accepted"
        ]
        == 1
    )
    assert len(read_in) == 1
    assert read_in[0] != "http"


def test_a_batch_as_full_as_the_limit_allows_is_taken(url: str) -> None:
    size = len(encode_report(GOOD)) + 4
    many = [
        report_to_message(replace(GOOD, report_id=number.to_bytes(16, "big")))
        for number in range(MAX_BATCH_BYTES // size)
    ]
    body = report_pb2.ReportBatch(reports=many).SerializeToString()
    assert MAX_BATCH_BYTES * 0.99 < len(body) <= MAX_BATCH_BYTES
    assert post(url, body).json() == {"accepted": len(many), "duplicates": 0, "rejected": {}}


def test_what_is_wrong_with_one_report_of_a_batch_is_counted_and_holds_up_no_other(url: str) -> None:
    empty = report_pb2.Report()
    body = report_pb2.ReportBatch(reports=[empty, report_to_message(GOOD), empty]).SerializeToString()
    assert post(url, body).json() == {"accepted": 1, "duplicates": 0, "rejected": {"malformed": 2}}
