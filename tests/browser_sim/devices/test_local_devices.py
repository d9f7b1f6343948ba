"""Devices of jobs without helpers against the ad server's own endpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.simulating.simulator import Simulated, simulate
from adserver.store.database import default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from browser_sim.devices.device_data import Holdings
from browser_sim.devices.local import LocalSettings, _LocalFleet, _LocalTold
from browser_sim.devices.local_store import LocalStore
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_description import LocalJob
from maskedlark.federated.local_job import LocalUpdate, local_job
from maskedlark.federated.populations import Population
from maskedlark.randomness import seeded
from tests.local_jobs import LocalJobs, opened
from tests.maskedlark.federated.local_world import DRAWS_ID, LINE_ID, WIDTHS, draws_job, line, line_job
from tests.patience import HANGS_S

SEED = 4


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[LocalJobs]:
    engine = opened(default_url(tmp_path))
    yield LocalJobs(engine, seeded(SEED, "first instances"))
    engine.dispose()


@pytest.fixture
def client(jobs: LocalJobs) -> Iterator[httpx.Client]:
    tasks = TaskStore(jobs.engine)
    intake = Intake(tasks, ReportStore(jobs.engine), lambda: 0.0)
    server = HttpServer(
        http_app(intake, tasks, local=jobs.intake(seeded(SEED, "places"))), "127.0.0.1:0", None
    )
    server.wait_until_started()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=HANGS_S) as opened:
        yield opened
    server.stop()


def holdings(devices: int = 3, each: int = 6) -> Holdings:
    features = np.random.default_rng(1).integers(0, 256, (devices * each, 4), np.uint8)
    members = tuple(np.arange(each * one, each * (one + 1)) for one in range(devices))
    return Holdings(
        features=features,
        labels=(features[:, 0] > 127).astype(np.int64),
        population=Population(members=members),
    )


def live(client: httpx.Client, folder: Path, job: LocalJob, **changes: Any) -> _LocalTold:
    settings: dict[str, Any] = {
        "site": str(client.base_url).rstrip("/") or "http://site",
        "job_id": job.job_id,
        "holdings": holdings(),
        "most_epsilon": 8.0,
        "seed": SEED,
    }
    with LocalStore(folder / "devices.sqlite3") as store:
        fleet = _LocalFleet(LocalSettings(**settings | changes), store, client, pause=lambda _: None)
        return fleet.run()


def test_a_line_job_over_http_takes_the_step_of_the_simulation(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job, strategy, held = line_job(rounds=1), line(rounds=1), holdings(each=2)
    jobs.submit(job)
    told = live(client, tmp_path, job, holdings=held)
    assert (told.accepted, told.reasons) == (3, {})
    model = DenseModel(widths=WIDTHS)
    what = Simulated(
        strategy=strategy, model=model, population=held.population, features=held.features, labels=held.labels
    )
    *_, last = simulate(what, model.initial(seeded(0, "first weights")), seed=SEED, evaluate=lambda _: {})
    assert jobs.rounds.state(LINE_ID).encode() == last.state.encode()


def test_line_gives_each_log_to_one_update_and_says_what_a_person_has_spent(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job = line_job(rounds=9)
    jobs.submit(job)
    told = live(client, tmp_path, job, visits=5)
    # Six logs a device and two an update: three rounds, then nobody has any left.
    assert (told.accepted, told.without_logs) == (9, 6)
    assert told.most_user_epsilon == pytest.approx(1.8, abs=0.3)
    assert told.sentence == (
        "3 devices: 9 updates accepted; 6 visits without one, since a device had fewer fresh examples than "
        "local.batch_size and uses each once; all updates of a person to this job cost up to epsilon "
        f"{told.most_user_epsilon:.3g}"
    )
    assert live(client, tmp_path, job).accepted == 0
    assert jobs.accepted(job.job_id) == 9


def test_devices_say_why_updates_were_not_taken_without_noise_of_no_epsilon() -> None:
    told = _LocalTold(devices=2, accepted=1, duplicates=3)
    told.reasons["round_over"] += 2
    assert told.sentence == (
        "2 devices: 1 update accepted; 3 that the ad server had already; 2 not taken (round over)"
    )


def test_logs_are_used_once_over_all_jobs_and_each_jobs_updates_are_counted_alone(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    first, second = line_job(), local_job(b"m" * 16, line(epsilon=0.5), WIDTHS)
    for job in (first, second):
        jobs.submit(job)
    assert live(client, tmp_path, first, visits=2).accepted == 6
    told = live(client, tmp_path, second, visits=2)
    # Four of a device's six logs are gone: one update of the second job, then none.
    assert (told.accepted, told.without_logs) == (3, 3)
    assert told.most_user_epsilon == pytest.approx(0.5, rel=1e-6)


def test_what_was_stored_and_never_answered_is_sent_again_and_counts_once(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job = line_job()
    jobs.submit(job)

    class Lost(httpx.BaseTransport):
        """Delivers, and loses every answer to an update."""

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            url = request.url.path
            if request.method == "POST":
                client.post(url, content=request.read())
                raise httpx.ReadError("lost")
            return httpx.Response(200, content=client.get(url).content)

    with httpx.Client(transport=Lost(), timeout=HANGS_S) as lossy, pytest.raises(HelperUnavailable):
        live(lossy, tmp_path, job)
    assert jobs.accepted(job.job_id) == 1
    told = live(client, tmp_path, job)
    assert told.duplicates == 1
    assert jobs.accepted(job.job_id) == 4  # the first device's next update is of logs that no update used


def test_draw_and_discard_over_http_learns_and_counts_each_update_once(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job = draws_job(instances=2, epsilon=60.0, learning_rate=4.0)
    plan = jobs.submit(job)
    told = live(client, tmp_path, job, visits=20, twice=0.5, most_epsilon=1e9)
    assert (jobs.accepted(job.job_id), told.accepted, told.reasons) == (60, 60, {})
    assert 5 < told.duplicates < 55
    held, weights = holdings(), jobs.models.parameters(plan)
    scores = held.features / 255 @ weights[:8].reshape(4, 2) + weights[8:]
    assert np.mean(scores.argmax(axis=1) == held.labels) > 0.75


def test_a_job_with_a_spam_test_takes_honest_updates_and_refuses_far_ones(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job = draws_job()
    jobs.submit(job, is_tested=True)
    told = live(client, tmp_path, job, visits=10)
    assert told.accepted >= 27
    assert told.most_user_epsilon == 10 * 5.0  # ten updates of ten coordinates at epsilon one half
    far = LocalUpdate(update_id=b"f" * 16, position=30, vector=np.full(10, 1 << 40))
    answer = client.post(f"/v1/local/{DRAWS_ID.hex()}", content=far.encode())
    assert answer.json()["reason"] == "implausible"
    assert jobs.accepted(job.job_id) == told.accepted


def test_a_device_takes_no_part_in_a_job_that_costs_more_than_it_allows(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job = draws_job()
    jobs.submit(job)
    with pytest.raises(InvalidTask, match="allows"):
        live(client, tmp_path, job, most_epsilon=1.0)
    assert jobs.accepted(job.job_id) == 0


def test_a_closed_or_unknown_job_serves_nothing_and_takes_nothing(
    client: httpx.Client, jobs: LocalJobs, tmp_path: Path
) -> None:
    job = draws_job()
    jobs.submit(job)
    url = f"/v1/local/{DRAWS_ID.hex()}"
    assert client.get("/v1/local").json() == {"jobs": [DRAWS_ID.hex()]}
    jobs.store.cancel(DRAWS_ID)
    assert client.get(url).status_code == 204
    assert client.post(url, content=bytes(24 + 80)).json()["reason"] == "round_over"
    assert client.get("/v1/local").json() == {"jobs": []}
    assert live(client, tmp_path, job).accepted == 0
    for unknown in ("00" * 16, "zz"):
        assert client.get(f"/v1/local/{unknown}").status_code == 404
        assert client.post(f"/v1/local/{unknown}", content=b"").status_code == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "wrong_length"),
        (bytes(24 + 72), "wrong_length"),
        (bytes(24 + 88), "wrong_length"),
        (bytes(16) + b"\xff" * 8 + bytes(80), "malformed"),
        (bytes(24) + b"\xff" * 7 + b"\x7f" + bytes(72), "implausible"),
        (bytes(24) + bytes(7) + b"\x80" + bytes(72), "implausible"),
    ],
)
def test_hostile_bodies_are_refused_by_name(
    client: httpx.Client, jobs: LocalJobs, body: bytes, reason: str
) -> None:
    jobs.submit(draws_job())
    answer = client.post(f"/v1/local/{DRAWS_ID.hex()}", content=body)
    assert (400 <= answer.status_code < 500, answer.json()["reason"]) == (True, reason)
    assert jobs.accepted(DRAWS_ID) == 0
