"""Intake replicas beside an ad server: they share its database, and keep nothing themselves."""

import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread

import httpx
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import ProgrammingError
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_metrics import IntakeMetrics
from adserver.serving.intake_servers import Addresses, running_ingest
from adserver.serving.replica import serve_intake
from adserver.store.database import check_tables, create_tables
from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_writer import PutsReports
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import InvalidTask
from maskedlark.reports.upload import Report
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report, report_to_message
from maskedlark.runtime.database import open_database
from maskedlark.runtime.objects import Retrying
from protos import ingest_pb2_grpc
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S
from tests.postgres import Postgres
from tests.stores import InMemory
from tests.update_builders import FORM, random_vector, update_job, update_reports, update_round, update_world

WORLD = world()
SOME = reports(WORLD, examples(WORLD.task, 24))
UPDATES = update_world()
JOB = update_job(UPDATES.task)
HERE = "127.0.0.1:0"
BEYOND_A_REPLICA = (
    "SELECT plan FROM jobs",
    "SELECT content FROM job_files",
    "UPDATE tasks SET refused_since = 0",
    "SELECT ciphertext_0 FROM reports",
    "SELECT ciphertext_1 FROM update_reports",
    "DELETE FROM reports",
    "UPDATE reports SET time_bucket = 0",
    "UPDATE report_states SET state = 'expired'",
    "SELECT state FROM report_states",
    "DELETE FROM report_states",
    "UPDATE update_rounds SET content = ''",
    "UPDATE update_rounds SET state = 'open'",
    "UPDATE tasks SET bundle = ''",
    "DELETE FROM report_objects",
    "UPDATE report_buckets SET url = ''",
)
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "replicas.md"


@pytest.fixture
def store(database_url: str) -> Iterator[Engine]:
    """An ad server's database with two tasks, one of them federated."""
    engine = open_database(database_url)
    create_tables(engine)
    for one in (WORLD, UPDATES):
        TaskStore(engine).add(one.bundle, created_at=NOW)
    yield engine
    engine.dispose()


@contextmanager
def two_replicas(url: str) -> Iterator[list[Addresses]]:
    """Two intakes with nothing in common but the database."""
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            engine = open_database(url)
            stack.callback(engine.dispose)
            found.append(stack.enter_context(running_ingest(engine, IntakeSettings(), tls=None)))
        yield found


posted, fetched = partial(httpx.post, timeout=HANGS_S), partial(httpx.get, timeout=HANGS_S)


def waiting(engine: Engine) -> int:
    return ReportStore(engine).counts(WORLD.task.task_id).waiting


def test_the_same_report_at_two_replicas_at_once_is_counted_once(database_url: str, store: Engine) -> None:
    with two_replicas(database_url) as doors, ThreadPoolExecutor(8) as threads:
        sent = [(door.http, report) for report in SOME for door in doors]
        codes = list(
            threads.map(
                lambda one: posted(f"http://{one[0]}/v1/reports", content=encode_report(one[1])), sent
            )
        )
    assert sorted(answer.status_code for answer in codes) == [200] * len(SOME) + [201] * len(SOME)
    assert waiting(store) == len(SOME)


def test_where_groups_become_objects_more_single_reports_wait_at_once_than_threads_are_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'adserver.sqlite3'}")
    create_tables(engine)
    TaskStore(engine).add(WORLD.bundle, created_at=NOW)
    monkeypatch.setattr(ReportBucket, "open", lambda _bucket: Retrying(InMemory()))
    all_wait, added = Barrier(48), ReportStore.add

    def add(store: ReportStore, accepted: Sequence[Report]) -> int:
        all_wait.wait(HANGS_S)
        return added(store, accepted)

    monkeypatch.setattr(ReportStore, "add", add)
    bodies = [encode_report(replace(SOME[0], report_id=bytes([number]) * 16)) for number in range(48)]
    bucket = ReportBucket.of(engine, "s3://reports", may_add=True)
    with (
        running_ingest(engine, IntakeSettings(), tls=None, bucket=bucket) as door,
        ThreadPoolExecutor(48) as threads,
    ):
        answers = list(
            threads.map(lambda body: posted(f"http://{door.http}/v1/reports", content=body), bodies)
        )
    assert {answer.status_code for answer in answers} == {201}
    assert waiting(engine) == 48
    engine.dispose()


def test_a_report_taken_over_http_by_one_is_a_duplicate_over_grpc_at_the_other(
    database_url: str, store: Engine
) -> None:
    with two_replicas(database_url) as doors:
        assert posted(f"http://{doors[0].http}/v1/reports", content=encode_report(SOME[0])).status_code == 201
        with make_channel(doors[1].grpc, None) as channel:
            reply = ingest_pb2_grpc.IngestStub(channel).Submit(
                map(report_to_message, SOME[:3]), timeout=HANGS_S
            )
    assert (reply.accepted, reply.duplicates, waiting(store)) == (2, 1, 3)


def test_a_task_that_another_process_makes_is_served_by_every_replica(
    database_url: str, store: Engine
) -> None:
    with two_replicas(database_url) as doors:
        other = world(name="other")
        made = TaskStore(store).add(other.bundle, created_at=NOW).hex()
        for door in doors:
            assert fetched(f"http://{door.http}/v1/tasks/{made}").status_code == 200


def test_a_round_that_is_closed_is_closed_at_every_replica(database_url: str, store: Engine) -> None:
    one = update_round(UPDATES.task, 0, job=JOB)
    first, second = update_reports(
        UPDATES, one, [random_vector(FORM, UPDATES.task.clip, n) for n in range(2)]
    )
    rounds = RoundStore(store)
    rounds.open(one, b"content", now_s=5.0)
    with two_replicas(database_url) as doors:

        def codes(report: Report) -> list[int]:
            body = encode_report(report)
            return [posted(f"http://{door.http}/v1/reports", content=body).status_code for door in doors]

        assert codes(first) == [201, 200]
        rounds.close(one.round_id, b"h" * 16, most=10)
        assert codes(second) == [422, 422]
    assert rounds.count(one.round_id) == 1


def test_the_grants_of_the_how_to_are_all_that_a_replica_needs(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(postgres.new_database())
    owner = open_database(url.render_as_string(hide_password=False))
    create_tables(owner)
    for world_of in (WORLD, UPDATES):
        TaskStore(owner).add(world_of.bundle, created_at=NOW)
    one = update_round(UPDATES.task, 0, job=JOB)
    [update] = update_reports(UPDATES, one, [random_vector(FORM, UPDATES.task.clip, 1)])
    RoundStore(owner).open(one, b"content", now_s=5.0)
    grants = [line.strip() for line in HOW_TO.read_text().splitlines() if line.startswith("    GRANT")]
    with owner.begin() as connection:
        connection.execute(text("CREATE ROLE intake LOGIN"))
        for grant in grants:
            connection.execute(text(grant))
    replica = open_database(url.set(username="intake").render_as_string(hide_password=False))
    check_tables(replica)
    with running_ingest(replica, IntakeSettings(), tls=None) as door:
        http = f"http://{door.http}"
        sent = [posted(f"{http}/v1/reports", content=encode_report(each)) for each in (*SOME[:2], update)]
        assert [answer.status_code for answer in sent] == [201, 201, 201]
        for path in ("", "/encoder", "/round"):
            answer = fetched(f"{http}/v1/tasks/{UPDATES.task.task_id.hex()}{path}")
            assert answer.status_code == (404 if path == "/encoder" else 200)
    monkeypatch.setattr("adserver.store.report_object_writer.WORTH_BYTES", 0)
    with pytest.raises(InvalidTask, match="first start its `serve`"):
        ReportBucket.of(replica, "s3://reports", may_add=False)
    ReportBucket.of(owner, "s3://reports", may_add=True)
    bucket, memory = ReportBucket.of(replica, "s3://reports", may_add=False), InMemory()
    putting = PutsReports(bucket, Retrying(memory), monotonic=time.monotonic)
    assert ReportStore(replica, putting).add((*SOME[2:], *SOME[:2])) == len(SOME) - 2
    assert len(memory.objects) == 1
    for forbidden in BEYOND_A_REPLICA:
        with replica.connect() as connection, pytest.raises(ProgrammingError, match="permission denied"):
            connection.execute(text(forbidden))
    replica.dispose()
    owner.dispose()


@pytest.mark.parametrize("version", [None, 2])
def test_a_replica_refuses_a_database_that_the_ad_server_has_not_made_ready(
    database_url: str, version: int | None
) -> None:
    engine = open_database(database_url)
    if version is not None:
        create_tables(engine)
        with engine.begin() as connection:
            connection.execute(text("UPDATE schema_version SET version = 2"))
    with pytest.raises(InvalidTask, match="start the ad server of this version first"):
        check_tables(engine)
    engine.dispose()


def test_a_replicas_metrics_are_of_its_own_intake_and_not_of_jobs(store: Engine) -> None:
    metrics = IntakeMetrics()
    with running_ingest(store, IntakeSettings(), tls=None, metrics=metrics) as door:
        for report in (SOME[0], SOME[0], replace(SOME[1], task_id=bytes(32))):
            posted(f"http://{door.http}/v1/reports", content=encode_report(report))
    told = {
        outcome: metrics.registry.get_sample_value("adserver_reports_total", {"outcome": outcome})
        for outcome in ("accepted", "duplicate", "wrong_task")
    }
    assert told == {"accepted": 1, "duplicate": 1, "wrong_task": 1}
    assert not [one.name for one in metrics.registry.collect() if "job" in one.name]


def test_a_replica_serves_until_it_is_told_to_end_and_is_well_meanwhile(
    tmp_path: Path, store: Engine
) -> None:
    addresses, stop = tmp_path / "addresses", Event()
    settings = IntakeSettings(addresses_file=addresses, metrics_listen="127.0.0.1:0")
    thread = Thread(target=serve_intake, args=(store, None, settings), kwargs={"stop": stop})
    thread.start()
    try:
        until = time.monotonic() + HANGS_S
        while not addresses.exists() and time.monotonic() < until:
            thread.join(0.01)
        http = json.loads(addresses.read_text())["http"]
        assert fetched(f"http://{http}/healthz").json() == {"status": "ok"}
        assert fetched(f"http://{http}/v1/local").status_code == 404
    finally:
        stop.set()
        thread.join(HANGS_S)
    assert not thread.is_alive()


def test_the_command_keeps_no_file_but_the_addresses_and_drains_on_sigterm(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.sqlite3'}"
    engine = open_database(url)
    create_tables(engine)
    TaskStore(engine).add(WORLD.bundle, created_at=NOW)
    home, addresses = tmp_path / "home", tmp_path / "addresses"
    home.mkdir()
    write_certificate(tmp_path, name="https://ads.example", hosts=("127.0.0.1",), now=datetime.now(UTC))
    command: list[str | Path] = [
        Path(sys.executable).with_name("adserver"), "intake", "--addresses-file", addresses,
        "--tls-cert", tmp_path / "tls.crt", "--tls-key", tmp_path / "tls.key",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=home, env={**os.environ, "ADSERVER_DATABASE": url, "HOME": str(home)}
    )
    try:
        until = time.monotonic() + HANGS_S
        while not addresses.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        http = json.loads(addresses.read_text())["http"]
        answer = posted(
            f"https://{http}/v1/reports",
            content=encode_report(SOME[0]),
            verify=ssl.create_default_context(cafile=tmp_path / "tls.crt"),
        )
        assert answer.status_code == 201
        process.terminate()
        assert process.wait(HANGS_S) == 0
    finally:
        process.kill()
        process.wait()
    assert waiting(engine) == 1
    assert not list(home.iterdir())
    engine.dispose()


@pytest.mark.parametrize(
    "options", [[], ["--insecure", "--tls-key", "x"], ["--tls-cert", "a", "--tls-key", "b"]]
)
def test_a_replica_without_whole_tls_files_is_told_which_options_it_needs(options: list[str]) -> None:
    told = CliRunner().invoke(app, ["intake", "--database", "sqlite://", *options])
    assert told.exit_code == 2
    assert "--tls-cert" in told.output or "is not a file" in told.output
