"""Draw and discard's instances in the database, SQLite or PostgreSQL, under many devices at once."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC

import numpy as np
import pytest
from sqlalchemy import Engine, text

from adserver.store.local.instances import InstanceStore
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalUpdate, local_job
from maskedlark.federated.spam import SpamTest
from maskedlark.randomness import seeded, system_randomness
from tests.local_jobs import LocalJobs, opened
from tests.maskedlark.federated.local_world import LINE_ID, line_job
from tests.patience import HANGS_S

JOB = b"j" * 16
SETTINGS = DrawAndDiscard(instances=5, learning_rate=0.001, epsilon=2.0)
WEIGHTS = 64
FIRST = SETTINGS.initial(np.zeros(WEIGHTS), seeded(1))


@pytest.fixture
def jobs(engine: Engine) -> LocalJobs:
    made = LocalJobs(engine, seeded(1))
    made.submit(local_job(JOB, SETTINGS, (31, 2)))
    return made


@pytest.fixture
def store(jobs: LocalJobs) -> InstanceStore:
    return jobs.instances


def returned(number: int, value: int | None = None, drawn_at: int = 0) -> LocalUpdate:
    instance = np.full(WEIGHTS, number if value is None else value, np.int64)
    return LocalUpdate(update_id=number.to_bytes(16, "big"), position=drawn_at, vector=instance)


def refused(store: InstanceStore, update: LocalUpdate, test: SpamTest | None = None) -> ReportReason:
    with pytest.raises(ReportRejected) as refusal:
        store.replace(JOB, update, seeded(1), test=test)
    return refusal.value.reason


def test_instances_come_back_as_they_were_stored(store: InstanceStore) -> None:
    assert (store.instances(JOB) == FIRST).all()


def test_draws_are_uniform_over_instances(store: InstanceStore) -> None:
    drawn = Counter(
        int(np.flatnonzero((store.draw(JOB, seeded(n)).instance == FIRST).all(axis=1))[0]) for n in range(500)
    )
    assert set(drawn) == set(range(5))
    assert max(abs(count - 100) for count in drawn.values()) < 5 * 9


def test_a_return_replaces_one_instance_whole(jobs: LocalJobs, store: InstanceStore) -> None:
    store.replace(JOB, returned(7), system_randomness)
    changed = (store.instances(JOB) != FIRST).any(axis=1)
    assert changed.sum() == 1
    assert (store.instances(JOB)[changed] == 7).all()
    assert jobs.accepted(JOB) == 1


def test_an_update_that_is_sent_again_counts_once(jobs: LocalJobs, store: InstanceStore) -> None:
    store.replace(JOB, returned(7), system_randomness)
    held = store.instances(JOB)
    assert refused(store, returned(7)) is ReportReason.DUPLICATE_ID
    assert (store.instances(JOB) == held).all()
    assert jobs.accepted(JOB) == 1


def test_what_comes_first_under_an_updates_id_displaces_no_other_update(
    jobs: LocalJobs, store: InstanceStore
) -> None:
    for update in (returned(7, value=8), returned(7)):
        store.replace(JOB, update, system_randomness)
        assert refused(store, update) is ReportReason.DUPLICATE_ID
    assert jobs.accepted(JOB) == 2


def test_a_model_of_another_length_is_refused(store: InstanceStore) -> None:
    short = LocalUpdate(update_id=bytes(16), position=0, vector=np.zeros(WEIGHTS - 1, np.int64))
    assert refused(store, short) is ReportReason.WRONG_LENGTH


def test_spam_is_refused_and_leaves_nothing(jobs: LocalJobs, store: InstanceStore) -> None:
    test = SpamTest.calibrate(SETTINGS, weights=WEIGHTS, in_flight=0.0, randomness=seeded(1))
    far = returned(7, value=1 << 40)
    assert refused(store, far, test) is ReportReason.IMPLAUSIBLE
    assert (store.instances(JOB) == FIRST).all()
    assert jobs.accepted(JOB) == 0
    store.replace(
        JOB, LocalUpdate(update_id=far.update_id, position=0, vector=FIRST[2]), seeded(1), test=test
    )
    assert jobs.accepted(JOB) == 1


def test_a_closed_job_takes_no_update(jobs: LocalJobs, store: InstanceStore) -> None:
    jobs.store.cancel(JOB)
    assert refused(store, returned(1)) is ReportReason.ROUND_OVER
    jobs.store.resume(JOB)
    store.replace(JOB, returned(1), system_randomness)
    assert jobs.accepted(JOB) == 1


def test_a_job_that_is_unknown_or_has_no_instances_is_refused(jobs: LocalJobs, store: InstanceStore) -> None:
    jobs.submit(line_job())
    for job_id in (b"x" * 16, LINE_ID):
        with pytest.raises(JobRefused) as unknown:
            store.draw(job_id, system_randomness)
        assert unknown.value.reason is JobReason.UNKNOWN_JOB
        with pytest.raises(JobRefused) as unknown:
            store.replace(job_id, returned(1), system_randomness)
        assert unknown.value.reason is JobReason.UNKNOWN_JOB


def test_updates_in_flight_are_measured_live(jobs: LocalJobs, store: InstanceStore) -> None:
    for number in range(600):
        store.replace(JOB, returned(number, drawn_at=max(0, number - 20)), system_randomness)
    assert jobs.get(JOB).in_flight == pytest.approx(20, abs=1)


def test_many_devices_at_once_lose_and_tear_nothing(
    database_url: str, jobs: LocalJobs, store: InstanceStore
) -> None:
    other = opened(database_url)
    stores = [store, InstanceStore(other)]

    def device(number: int) -> None:
        for turn in range(12):
            drawn = stores[number % 2].draw(JOB, system_randomness)
            assert len(set(drawn.instance.tolist())) == 1 or (drawn.instance == FIRST).all(axis=1).any()
            update = returned(1 + number * 100 + turn, drawn_at=drawn.returns)
            stores[number % 2].replace(JOB, update, system_randomness)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(device, range(8)))
    other.dispose()
    assert jobs.accepted(JOB) == 96
    for instance in store.instances(JOB):
        assert len(set(instance.tolist())) == 1 or (instance == FIRST).all(axis=1).any()


WRITER = """
import itertools, sys
from tests.adserver.store.local.test_instances import JOB, returned
from adserver.store.local.instances import InstanceStore
from tests.local_jobs import opened
from maskedlark.randomness import system_randomness
store = InstanceStore(opened(sys.argv[1]))
for number in itertools.count(1):
    store.replace(JOB, returned(number), system_randomness)
    print(number, flush=True)
"""


def await_alone(engine: Engine) -> None:
    """Return once PostgreSQL has ended what others began: it may still commit for a client that is gone."""
    others = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    until = time.monotonic() + HANGS_S
    while engine.dialect.name == "postgresql" and time.monotonic() < until:
        with engine.connect() as connection:
            if not connection.execute(others).scalar_one():
                break
        time.sleep(0.02)


def test_a_writer_that_is_killed_leaves_whole_instances_and_true_counts(
    database_url: str, engine: Engine, jobs: LocalJobs, store: InstanceStore
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, database_url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),  # noqa: PTH109
    )
    assert process.stdout is not None
    for _ in range(20):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    await_alone(engine)
    assert jobs.accepted(JOB) >= last
    for instance in store.instances(JOB):
        assert len(set(instance.tolist())) == 1 or (instance == FIRST).all(axis=1).any()


def test_a_store_whose_disk_is_full_tells_every_device_that_waits(
    jobs: LocalJobs, store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(ENOSPC, "no space left")

    monkeypatch.setattr("adserver.store.local.instances._take_in", full)
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(store.replace, JOB, returned(n), system_randomness) for n in range(8)]
        assert {type(one.exception()) for one in sent} == {OSError}
    monkeypatch.undo()
    assert jobs.accepted(JOB) == 0
    store.replace(JOB, returned(3), system_randomness)
    assert jobs.accepted(JOB) == 1
