"""Reports in a server that speaks S3, by intakes of which one is killed, on PostgreSQL."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

import httpx
import pytest
from sqlalchemy import func, select

from adserver.collecting.object_sweeping import ORPHAN_S, sweep_objects
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_servers import running_ingest
from adserver.store.report_buckets import ReportBucket
from adserver.store.schema import report_objects
from maskedlark.errors import JobReason, JobRefused
from maskedlark.reports.sealing import OVERHEADS
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import report_to_message
from maskedlark.runtime.bucket import open_bucket
from maskedlark.runtime.objects import ObjectStore, Retrying
from protos import report_pb2
from tests.adserver.report_objects_site import OF, URL, Site, by_id, drawn, site_at
from tests.patience import HANGS_S
from tests.postgres import Postgres
from tests.stores import Faulty

pytest.importorskip("obstore", reason="needs the extra cluster")

SEALED: Final = (OF.task.plaintext_length(0) + OVERHEADS[0], OF.task.plaintext_length(1) + OVERHEADS[0])
KILLED_AT_ITS_COMMIT: Final = """
import os, signal, sys
from pathlib import Path
from threading import Event
from sqlalchemy import event
from adserver.records.server_settings import IntakeSettings
from adserver.serving.replica import serve_intake
from maskedlark.runtime.database import open_database

database, bucket, addresses = sys.argv[1:]
engine = open_database(database)
written = []

@event.listens_for(engine, "before_cursor_execute")
def note(connection, cursor, statement, parameters, context, executemany):
    if "INSERT INTO report_objects" in statement:
        written.append(statement)

@event.listens_for(engine, "commit")
def end(connection):
    if written:
        os.kill(os.getpid(), signal.SIGKILL)

settings = IntakeSettings(addresses_file=Path(addresses), report_objects=bucket)
serve_intake(engine, None, settings, stop=Event())
"""


def to(site: Site, store: ObjectStore) -> None:
    """Whatever opens the bucket from now on opens this store."""

    def opened(_bucket: ReportBucket) -> Retrying:
        return Retrying(store, sleep=lambda _: None, whose="the ad server")

    site.monkeypatch.setattr(ReportBucket, "open", opened)


def test_two_hundred_groups_in_s3_with_faults_are_sealed_whole_or_refused(
    s3: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert httpx.put(f"{s3}/reports", timeout=HANGS_S).is_success
    with site_at(postgres.new_database(), monkeypatch) as site:
        store = open_bucket(URL)
        faulty, drawing = Faulty(store, seed=3, fails=0.05, cuts=0.02, swaps=0.02), Random(3)
        to(site, faulty)
        intakes = (site.intake(), site.intake())
        made = [drawn(drawing.randint(5, 12), seed=number) for number in range(200)]
        assert [intakes[n % 2].add(some) for n, some in enumerate(made)] == [len(some) for some in made]
        expected = by_id([report for some in made for report in some])
        try:
            assert by_id(site.taken()) == expected
        except JobRefused as refusal:
            if refusal.reason is not JobReason.REPORTS_LOST:
                raise
        assert faulty.faults > 10
        to(site, store)
        assert by_id(site.taken()) == expected
        assert site.num_objects() == 200


def test_an_intake_killed_between_put_and_commit_loses_nothing_that_it_acknowledged(
    s3: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert httpx.put(f"{s3}/reports", timeout=HANGS_S).is_success
    database, addresses = postgres.new_database(), tmp_path / "addresses"
    with monkeypatch.context() as patched, site_at(database, patched) as site:
        to(site, open_bucket(URL))
        made = drawn(400, seed=1, widths=(SEALED,))
        site.intake().add(made[300:])  # not its first: that would make it a repeated upload, which is not put
        command = [sys.executable, "-c", KILLED_AT_ITS_COMMIT, database, URL, str(addresses)]
        process = subprocess.Popen(command, env=dict(os.environ))
        try:
            until = time.monotonic() + HANGS_S
            while not addresses.exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            with pytest.raises(httpx.TransportError):
                posted(json.loads(addresses.read_text())["http"], made)
            assert process.wait(HANGS_S) == -9
        finally:
            process.kill()
            process.wait()
        assert (site.waiting(), len(listed(site))) == (100, 2)
        with running_ingest(
            site.engine, IntakeSettings(report_objects=URL), tls=None, bucket=site.bucket
        ) as door:
            assert posted(door.http, made) == {"accepted": 300, "duplicates": 100, "rejected": {}}
        assert by_id(site.taken()) == by_id(made)
        now_s = time.time() + ORPHAN_S + 60
        assert sweep_objects(site.engine, site.bucket, site.bucket.open(), now_s) == 1
        with site.engine.connect() as connection:
            named = connection.execute(select(func.count()).select_from(report_objects)).scalar_one()
        assert len(listed(site)) == named == 2
        assert by_id(site.taken()) == by_id(made)


def posted(http: str, reports: list[Report]) -> dict[str, object]:
    """Send a batch; what the intake answers."""
    body = report_pb2.ReportBatch(reports=[report_to_message(one) for one in reports]).SerializeToString()
    answer = httpx.post(f"http://{http}/v1/reports/batch", content=body, timeout=HANGS_S)
    found: dict[str, object] = answer.json()
    return found


def listed(site: Site) -> list[str]:
    """The names of all objects in the database's folder."""
    return [one.name for page in site.bucket.open().list(site.bucket.folder) for one in page]
