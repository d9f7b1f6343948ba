"""Both services, fuzzed through their wire.

Random messages in random order get a typed answer, and the next honest caller is served.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark import canonical
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.builders import NOW, examples, reports, share_to_message, shares_for, world
from tests.fuzz.mutations import FUZZ, almost
from tests.helper.parties import MODEL, WEIGHTS, Scene
from tests.helper.served import served
from tests.patience import HANGS_S

FEWER = settings(FUZZ, max_examples=60)
ANSWERS = {  # of the typed errors; INTERNAL is gRPC's own answer to what is no message
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
METHODS = ("PrepareDataset", "StartJob", "RunRound")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def channel(scene: Scene) -> Iterator[grpc.Channel]:
    with served(scene.cores[0]) as address, make_channel(address, None) as opened:
        yield opened


def valid_messages(scene: Scene) -> list[bytes]:
    """Messages of an honest ad server, of every stream."""
    [share] = shares_for(scene.reports(1), 0)
    message = pb.HelperShare(
        report_id=share.report_id, time_bucket=share.time_bucket, share=share_to_message(share.share)
    )
    job = canonical.encode(scene.job(bytes(32)))
    return [
        one.SerializeToString()
        for one in (
            pb.PrepareRequest(header=pb.PrepareRequest.Header(task_id=scene.task_id, handle=b"h" * 16)),
            pb.PrepareRequest(chunk=pb.PrepareRequest.Chunk(shares=[message])),
            pb.PrepareRequest(end=pb.PrepareRequest.End()),
            pb.StartJobRequest(job=job),
            pb.StartJobRequest(model=MODEL),
            pb.RoundRequest(header=pb.RoundRequest.Header(task_id=scene.task_id, job_id=b"j" * 16, round=0)),
            pb.RoundRequest(weights=WEIGHTS),
            pb.CommitRequest(task_id=scene.task_id, handle=b"h" * 16, chosen=b"\x01", dataset_id=bytes(32)),
            pb.RegisterTaskRequest(task=canonical.encode(scene.task)),
        )
    ]


@contextmanager
def typed_answer() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        status: Any = error
        said = status.code(), status.details()
        assert said[0] in ANSWERS or "deserializing" in said[1], said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@FEWER
@given(data=st.data())
def test_streams_of_random_messages_get_typed_answers(
    scene: Scene, channel: grpc.Channel, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    caplog.set_level(logging.CRITICAL, "grpc._common")
    messages = data.draw(st.lists(almost(*valid_messages(scene)), max_size=5))
    method = data.draw(st.sampled_from(METHODS))
    call: Any = channel.stream_stream(f"/maskedlark.v1.Helper/{method}", None, None)
    with typed_answer():
        list(call(iter(messages), timeout=HANGS_S))
    assert not [record for record in caplog.records if "a bug" in record.getMessage()]
    stub = helper_pb2_grpc.HelperStub(channel)
    assert stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name == "north"


@FEWER
@given(data=st.data())
def test_single_messages_of_random_bytes_get_typed_answers(
    scene: Scene, channel: grpc.Channel, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    caplog.set_level(logging.CRITICAL, "grpc._common")
    message = data.draw(almost(*valid_messages(scene)))
    method = data.draw(st.sampled_from(("RegisterTask", "CommitDataset", "CloseJob", "GetStatus")))
    with typed_answer():
        channel.unary_unary(f"/maskedlark.v1.Helper/{method}", None, None)(message, timeout=HANGS_S)
    assert not [record for record in caplog.records if "a bug" in record.getMessage()]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    engine = open_database(default_url(tmp_path_factory.mktemp("adserver")))
    create_tables(engine)
    tasks = TaskStore(engine)
    tasks.add(WORLD.bundle, created_at=NOW)
    server = HttpServer(http_app(Intake(tasks, ReportStore(engine), lambda: 0.0), tasks), "127.0.0.1:0", None)
    server.wait_until_started()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=HANGS_S) as client:
        yield client
    server.stop()
    engine.dispose()


WORLD = world()
BODY = encode_report(reports(WORLD, examples(WORLD.task, 1))[0])
BATCH = (
    b"\x0a" + len(BODY).to_bytes(1, "little") + BODY
    if len(BODY) < 128
    else b"\x0a" + bytes((len(BODY) & 127 | 128, len(BODY) >> 7)) + BODY
)


@FEWER
@given(data=st.data())
def test_http_bodies_of_random_bytes_get_an_answer_that_is_no_failure(
    browser: httpx.Client, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(("/v1/reports", "/v1/reports/batch")))
    answer = browser.post(path, content=data.draw(almost(BODY, BATCH)))
    assert answer.status_code in (200, 201, 400, 404, 413, 422)
    assert answer.headers["content-type"] == "application/json"


@FEWER
@given(path=st.text(max_size=80), method=st.sampled_from(("GET", "POST", "PUT", "DELETE")))
def test_paths_of_any_kind_get_an_answer_that_is_no_failure(
    browser: httpx.Client, path: str, method: str
) -> None:
    assert browser.request(method, "/v1/tasks/" + quote(path, safe="")).status_code in (200, 307, 404, 405)


def test_the_honest_batch_is_taken(browser: httpx.Client) -> None:
    counts = browser.post("/v1/reports/batch", content=BATCH).json()
    assert counts["accepted"] + counts["duplicates"] == 1
