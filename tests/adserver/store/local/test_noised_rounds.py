"""LINE's rounds without helpers, SQLite or PostgreSQL: each update once, each step once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sqlalchemy import Engine

from adserver.records.job_state import JobState
from adserver.store.local.noised_rounds import NoisedRounds
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_job import LocalUpdate, local_job
from maskedlark.randomness import seeded
from tests.local_jobs import LocalJobs, opened
from tests.maskedlark.federated.local_world import LINE_ID, PARAMETERS, WIDTHS, line, line_job

LINE = line()
MODEL = DenseModel(widths=WIDTHS)


@pytest.fixture
def jobs(engine: Engine) -> LocalJobs:
    made = LocalJobs(engine)
    made.submit(line_job())
    return made


@pytest.fixture
def store(jobs: LocalJobs) -> NoisedRounds:
    return jobs.rounds


def arrived(number: int, index: int = 0, value: int = 1) -> LocalUpdate:
    vector = np.full(PARAMETERS, value * number, np.int64)
    return LocalUpdate(update_id=number.to_bytes(16, "big"), position=index, vector=vector)


def refused(store: NoisedRounds, update: LocalUpdate) -> ReportReason:
    with pytest.raises(ReportRejected) as refusal:
        store.add(LINE_ID, LINE, update)
    return refusal.value.reason


def test_a_round_ends_with_the_step_of_the_sum_of_its_updates(jobs: LocalJobs, store: NoisedRounds) -> None:
    before = store.state(LINE_ID)
    asked = LINE.next_round(before)
    assert asked is not None
    for number in (1, 2, 3):
        assert jobs.accepted(LINE_ID) == number - 1
        assert jobs.get(LINE_ID).rounds_done == 0
        store.add(LINE_ID, LINE, arrived(number))
    expected = LINE.step(before, asked, np.full(PARAMETERS, 6, np.int64))
    assert store.state(LINE_ID).encode() == expected.encode()
    assert (jobs.get(LINE_ID).rounds_done, jobs.get(LINE_ID).state) == (1, JobState.OPEN)


def test_after_the_last_round_nothing_is_asked_or_taken(jobs: LocalJobs, store: NoisedRounds) -> None:
    for index in (0, 1):
        for number in (1, 2, 3):
            store.add(LINE_ID, LINE, arrived(10 * index + number, index))
    assert store.find_round(LINE_ID, LINE) is None
    assert (jobs.get(LINE_ID).state, jobs.get(LINE_ID).rounds_done) == (JobState.DONE, 2)
    assert refused(store, arrived(99, 2)) is ReportReason.ROUND_OVER


def test_double_late_early_and_wrong_updates_are_refused_by_name(store: NoisedRounds) -> None:
    store.add(LINE_ID, LINE, arrived(1))
    assert refused(store, arrived(1)) is ReportReason.DUPLICATE_ID
    assert refused(store, arrived(5, 1)) is ReportReason.UNKNOWN_ROUND
    short = LocalUpdate(update_id=bytes(16), position=0, vector=np.zeros(3, np.int64))
    assert refused(store, short) is ReportReason.WRONG_LENGTH
    for sign in (1, -1):
        far = LINE.largest_value(PARAMETERS) + 1
        vector = np.full(PARAMETERS, sign * far, np.int64)
        beyond = LocalUpdate(update_id=b"f" * 16, position=0, vector=vector)
        assert refused(store, beyond) is ReportReason.IMPLAUSIBLE
    for number in (2, 3):
        store.add(LINE_ID, LINE, arrived(number))
    assert refused(store, arrived(7)) is ReportReason.ROUND_OVER
    assert refused(store, arrived(1)) is ReportReason.DUPLICATE_ID


def test_what_comes_first_under_an_updates_id_displaces_no_other_update(
    jobs: LocalJobs, store: NoisedRounds
) -> None:
    junk = LocalUpdate(update_id=arrived(1).update_id, position=0, vector=np.zeros(PARAMETERS, np.int64))
    for update in (junk, arrived(1)):
        store.add(LINE_ID, LINE, update)
        assert refused(store, update) is ReportReason.DUPLICATE_ID
    assert jobs.accepted(LINE_ID) == 2


def test_a_closed_job_takes_no_update(jobs: LocalJobs, store: NoisedRounds) -> None:
    store.add(LINE_ID, LINE, arrived(1))
    jobs.store.cancel(LINE_ID)
    assert refused(store, arrived(2)) is ReportReason.ROUND_OVER
    assert refused(store, arrived(1)) is ReportReason.DUPLICATE_ID
    jobs.store.resume(LINE_ID)
    store.add(LINE_ID, LINE, arrived(2))
    assert jobs.accepted(LINE_ID) == 2


def test_unknown_jobs_are_refused(store: NoisedRounds) -> None:
    with pytest.raises(JobRefused) as refusal:
        store.add(b"x" * 16, LINE, arrived(1))
    assert refusal.value.reason is JobReason.UNKNOWN_JOB


def test_updates_of_many_threads_and_two_processes_sum_each_once(
    database_url: str, jobs: LocalJobs, store: NoisedRounds
) -> None:
    wide = line(devices=40, rounds=1)
    job = b"w" * 16
    jobs.submit(local_job(job, wide, WIDTHS))
    before = store.state(job)
    asked = wide.next_round(before)
    assert asked is not None
    other = opened(database_url)
    stores = [store, NoisedRounds(other)]

    def send(number: int) -> None:
        stores[number % 2].add(job, wide, arrived(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(40)))
    other.dispose()
    expected = wide.step(before, asked, np.full(PARAMETERS, sum(range(40)), np.int64))
    assert store.state(job).encode() == expected.encode()


def test_the_first_weights_follow_the_seed(jobs: LocalJobs, store: NoisedRounds) -> None:
    jobs.submit(local_job(b"s" * 16, LINE, WIDTHS), seed=5)
    assert (store.state(b"s" * 16).parameters == MODEL.initial(seeded(5, "first weights"))).all()
