"""Draw and discard's instances in the database, SQLite or PostgreSQL, under many devices at once."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine, text

from adserver.store.local.instances import InstanceStore
from adserver.store.local.schema import open_local
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.spam import SpamTest
from maskedlark.randomness import seeded, system_randomness
from tests.patience import HANGS_S

JOB = b"j" * 16
SETTINGS = DrawAndDiscard(instances=5, learning_rate=0.001, epsilon=2.0)
WEIGHTS = 64
FIRST = SETTINGS.initial(np.zeros(WEIGHTS), seeded(1))


@pytest.fixture
def store(engine: Engine) -> InstanceStore:
    made = InstanceStore(engine)
    made.create(JOB, SETTINGS, FIRST)
    return made


def returned(number: int, value: int | None = None, drawn_at: int = 0) -> LocalUpdate:
    instance = np.full(WEIGHTS, number if value is None else value, np.int64)
    return LocalUpdate(update_id=number.to_bytes(16, "big"), position=drawn_at, vector=instance)


def refused(store: InstanceStore, update: LocalUpdate, test: SpamTest | None = None) -> ReportReason:
    with pytest.raises(ReportRejected) as refusal:
        store.replace(JOB, update, seeded(1), test=test)
    return refusal.value.reason


def test_instances_come_back_as_they_were_stored(store: InstanceStore) -> None:
    assert (store.instances(JOB) == FIRST).all()
    assert store.job(JOB).settings == SETTINGS


def test_draws_are_uniform_over_instances(store: InstanceStore) -> None:
    drawn = Counter(
        int(np.flatnonzero((store.draw(JOB, seeded(n)).instance == FIRST).all(axis=1))[0]) for n in range(500)
    )
    assert set(drawn) == set(range(5))
    assert max(abs(count - 100) for count in drawn.values()) < 5 * 9


def test_a_return_replaces_one_instance_whole(store: InstanceStore) -> None:
    store.replace(JOB, returned(7), system_randomness)
    changed = (store.instances(JOB) != FIRST).any(axis=1)
    assert changed.sum() == 1
    assert (store.instances(JOB)[changed] == 7).all()
    assert store.job(JOB).returns == 1


def test_an_update_that_is_sent_again_counts_once(store: InstanceStore) -> None:
    store.replace(JOB, returned(7), system_randomness)
    held = store.instances(JOB)
    assert refused(store, returned(7)) is ReportReason.DUPLICATE_ID
    assert (store.instances(JOB) == held).all()
    assert store.job(JOB).returns == store.accepted(JOB) == 1


def test_what_comes_first_under_an_updates_id_displaces_no_other_update(store: InstanceStore) -> None:
    for update in (returned(7, value=8), returned(7)):
        store.replace(JOB, update, system_randomness)
        assert refused(store, update) is ReportReason.DUPLICATE_ID
    assert store.job(JOB).returns == store.accepted(JOB) == 2


def test_a_model_of_another_length_is_refused(store: InstanceStore) -> None:
    short = LocalUpdate(update_id=bytes(16), position=0, vector=np.zeros(WEIGHTS - 1, np.int64))
    assert refused(store, short) is ReportReason.WRONG_LENGTH


def test_spam_is_refused_and_leaves_nothing(store: InstanceStore) -> None:
    test = SpamTest.calibrate(SETTINGS, weights=WEIGHTS, in_flight=0.0, randomness=seeded(1))
    far = returned(7, value=1 << 40)
    assert refused(store, far, test) is ReportReason.IMPLAUSIBLE
    assert (store.instances(JOB) == FIRST).all()
    assert store.accepted(JOB) == 0
    store.replace(
        JOB, LocalUpdate(update_id=far.update_id, position=0, vector=FIRST[2]), seeded(1), test=test
    )
    assert store.accepted(JOB) == 1


def test_an_unknown_job_and_a_taken_id_are_refused(store: InstanceStore) -> None:
    with pytest.raises(JobRefused) as unknown:
        store.draw(b"x" * 16, system_randomness)
    assert unknown.value.reason is JobReason.UNKNOWN_JOB
    with pytest.raises(JobRefused) as unknown:
        store.replace(b"x" * 16, returned(1), system_randomness)
    assert unknown.value.reason is JobReason.UNKNOWN_JOB
    with pytest.raises(JobRefused) as taken:
        store.create(JOB, SETTINGS, FIRST)
    assert taken.value.reason is JobReason.JOB_CHANGED


def test_updates_in_flight_are_measured_live(store: InstanceStore) -> None:
    for number in range(600):
        store.replace(JOB, returned(number, drawn_at=max(0, number - 20)), system_randomness)
    assert store.job(JOB).in_flight == pytest.approx(20, abs=1)


def test_many_devices_at_once_lose_and_tear_nothing(database_url: str, store: InstanceStore) -> None:
    other = open_local(database_url)
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
    assert store.job(JOB).returns == store.accepted(JOB) == 96
    for instance in store.instances(JOB):
        assert len(set(instance.tolist())) == 1 or (instance == FIRST).all(axis=1).any()


WRITER = """
import itertools, sys
from tests.adserver.store.local.test_instances import JOB, returned
from adserver.store.local.instances import InstanceStore
from adserver.store.local.schema import open_local
from maskedlark.randomness import system_randomness
store = InstanceStore(open_local(sys.argv[1]))
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
    database_url: str, engine: Engine, store: InstanceStore
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
    assert store.job(JOB).returns == store.accepted(JOB) >= last
    for instance in store.instances(JOB):
        assert len(set(instance.tolist())) == 1 or (instance == FIRST).all(axis=1).any()


def test_a_store_whose_disk_is_full_tells_every_device_that_waits(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(ENOSPC, "no space left")

    monkeypatch.setattr("adserver.store.local.instances._take_in", full)
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(store.replace, JOB, returned(n), system_randomness) for n in range(8)]
        assert {type(one.exception()) for one in sent} == {OSError}
    monkeypatch.undo()
    assert store.accepted(JOB) == store.job(JOB).returns == 0
    store.replace(JOB, returned(3), system_randomness)
    assert store.accepted(JOB) == 1


def test_sqlite_waits_for_the_disk_when_the_log_is_taken_in_not_at_each_commit(tmp_path: Path) -> None:
    opened = open_local(f"sqlite:///{tmp_path / 'instances.sqlite3'}")
    with opened.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "wal_autocheckpoint")
        }
    opened.dispose()
    assert found == {"journal_mode": "wal", "synchronous": 1, "wal_autocheckpoint": 8192}
