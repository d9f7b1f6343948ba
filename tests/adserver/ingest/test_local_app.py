"""Updates of jobs without helpers: taken once, counted, and refused for what they are."""

from dataclasses import replace

import httpx
import numpy as np
import pytest

from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.ingest.local_app import LARGEST_WEIGHT
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.spam import SpamTest
from tests.local_jobs import LocalJobs
from tests.maskedlark.federated.local_world import DRAWS_ID, LINE_ID, PARAMETERS, draws
from tests.patience import HANGS_S


def update(number: int, value: int = 1) -> bytes:
    vector = np.full(PARAMETERS, value, np.int64)
    return LocalUpdate(update_id=number.to_bytes(16, "big"), position=0, vector=vector).encode()


def test_an_update_is_accepted_once_and_each_time_counted(jobs: LocalJobs) -> None:
    local = jobs.intake()
    for job_id in (LINE_ID, DRAWS_ID):
        assert [local.take(job_id, update(1)) for _ in range(2)] == [True, False]
    assert local.counts == {"accepted": 2, ReportReason.DUPLICATE_ID.value: 2}


def test_what_an_update_is_refused_for_is_counted(jobs: LocalJobs) -> None:
    local = jobs.intake()
    jobs.store.cancel(LINE_ID)
    refusals = [
        (LINE_ID, update(2), ReportReason.ROUND_OVER),
        (DRAWS_ID, update(3)[:-8], ReportReason.WRONG_LENGTH),
        (DRAWS_ID, update(4, LARGEST_WEIGHT), ReportReason.IMPLAUSIBLE),
        (DRAWS_ID, update(5, -LARGEST_WEIGHT), ReportReason.IMPLAUSIBLE),
    ]
    for job_id, body, reason in refusals:
        with pytest.raises(ReportRejected) as refused:
            local.take(job_id, body)
        assert refused.value.reason is reason
    assert local.counts.total() == len(refusals)
    assert local.counts[ReportReason.IMPLAUSIBLE.value] == 2


@pytest.mark.parametrize("value", [LARGEST_WEIGHT - 1, 1 - LARGEST_WEIGHT])
def test_a_weight_just_within_its_bound_is_accepted(jobs: LocalJobs, value: int) -> None:
    assert jobs.intake().take(DRAWS_ID, update(6, value))


def test_limits_are_made_once_for_each_step_of_updates_in_flight(
    jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powers of two, and none where less than one update is under way."""
    made: list[int] = []

    def calibrate(_: object, *, in_flight: int, **__: object) -> object:
        made.append(in_flight)
        return object()

    monkeypatch.setattr(SpamTest, "calibrate", calibrate)
    local, now = jobs.intake(), jobs.get(DRAWS_ID)
    settings = draws()
    for in_flight, step in ((0.0, 0), (0.9, 0), (1.0, 1), (1.6, 2), (2.4, 2), (2.6, 4), (4.4, 4), (4.6, 8)):
        job = replace(now, in_flight=in_flight)
        limits = local._spam_test(job, settings, PARAMETERS)
        assert made[-1] == step
        assert local._spam_test(job, settings, PARAMETERS) is limits
    assert made == [0, 1, 2, 4, 8]
    local._spam_test(replace(now, in_flight=1e9), settings, PARAMETERS)
    assert made[-1] == 1 << 14, "devices say how many, and a calibration holds them"


def test_a_body_may_be_as_long_as_an_update_and_no_longer(jobs: LocalJobs) -> None:
    assert jobs.intake().most_bytes(DRAWS_ID) == LocalUpdate.num_bytes(PARAMETERS) == len(update(1))


def test_a_closed_job_serves_nothing_and_an_unknown_one_is_refused(jobs: LocalJobs) -> None:
    local = jobs.intake()
    assert set(local.open_jobs()) == {LINE_ID.hex(), DRAWS_ID.hex()}
    for job_id in (LINE_ID, DRAWS_ID):
        assert local.download(job_id) is not None
        jobs.store.cancel(job_id)
        assert local.download(job_id) is None
    assert local.open_jobs() == []
    for ask in (local.download, local.most_bytes, lambda job_id: local.take(job_id, update(7))):
        with pytest.raises(JobRefused) as refused:
            ask(b"?" * 16)
        assert refused.value.reason is JobReason.UNKNOWN_JOB


@pytest.mark.parametrize(("has_local", "status"), [(True, 200), (False, 404)])
def test_jobs_without_helpers_are_served_where_there_are_some_alone(
    jobs: LocalJobs, has_local: bool, status: int
) -> None:
    engine = jobs.engine
    tasks = TaskStore(engine)
    local = jobs.intake() if has_local else None
    app = http_app(Intake(tasks, ReportStore(engine), lambda: 0.0), tasks, local=local)
    server = HttpServer(app, "127.0.0.1:0", None)
    server.wait_until_started()
    try:
        url = f"http://127.0.0.1:{server.port}/v1/local"
        assert httpx.get(url, timeout=HANGS_S).status_code == status
    finally:
        server.stop()
