"""A job that is cancelled while its start is on its way keeps no budget at either helper, also if the ad
server's process died then.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest
from sqlalchemy import Engine

from adserver.peers.retrying import Backoff
from adserver.records.job_state import JobState
from adserver.store.database import create_tables, default_url
from adserver.store.job_files import submit
from adserver.store.jobs import JobStore
from adserver.training.worker import JobWorker
from helper.ledger.ledger import Ledger
from helper.releases.answering import Call
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.started_job import StartedJob
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import Killed, SetClock
from tests.helper.parties import MODEL, Scene
from tests.patience import HANGS_S
from tests.training_plans import training_plan


class SlowWay:
    """A real helper, to which the start of a job travels until `arrive` is called, whatever becomes of who
    sent it: a process that dies once it has sent both starts, or one that waits for the answers.
    """

    def __init__(self, scene: Scene, role: int, dies_with_both: Barrier | None) -> None:
        self._jobs = scene.cores[role].jobs
        self._dies_with_both = dies_with_both
        self.sent, self.over = Event(), Event()
        self._begun: list[Callable[[], object]] = []

    def start_job(self, job: JobSpec, model: bytes) -> StartedJob:
        self._begun.append(lambda: self._jobs.start(encode(job), model, Call(caller=None)))
        self.sent.set()
        if self._dies_with_both:
            self._dies_with_both.wait(HANGS_S)
            raise Killed
        self.over.wait(HANGS_S)
        raise AssertionError("nobody waits so long for this answer")

    def run_round(self, *_: object, **__: object) -> AggregateShare:
        raise AssertionError("a job that was never seen to start runs no round")

    def close_job(self, job: JobSpec) -> int:
        return self._jobs.close(encode(job), None)

    def arrive(self) -> JobReason | None:
        """What the helper says to the start; None: it takes it."""
        (begin,) = self._begun
        try:
            begin()
        except JobRefused as refused:
            return refused.reason
        return None


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "helpers", mechanism="gaussian", epsilon=2.0, collusion_epsilon=1000.0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    one = open_database(default_url(tmp_path))
    create_tables(one)
    yield one
    one.dispose()


def reserved(scene: Scene, dataset: bytes) -> list[int]:
    return [len(ledger_of(scene, role).reservations(dataset)) for role in (0, 1)]


def ledger_of(scene: Scene, role: int) -> Ledger:
    return scene.cores[role].queries.ledger


@pytest.mark.parametrize("killed", [False, True], ids=["cancelled", "killed, then cancelled"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_start_that_arrives_after_the_job_was_cancelled_reserves_nothing(
    scene: Scene, engine: Engine, tmp_path: Path, killed: bool, request: pytest.FixtureRequest
) -> None:
    dataset = scene.seal()
    spec = scene.job(dataset, noise_multiplier=10.0)
    plan = training_plan(scene.task, spec, records=20)
    clock = SetClock()
    dies = Barrier(2) if killed else None
    store, helpers = JobStore(engine, clock), (SlowWay(scene, 0, dies), SlowWay(scene, 1, dies))
    for helper in helpers:
        request.addfinalizer(helper.over.set)
    submit(engine, tmp_path, plan, model=MODEL, eval_set=None, clock=clock)

    def worker() -> JobWorker:
        return JobWorker(
            engine, helpers, tmp_path, clock, backoff=Backoff(give_up_after_s=0.1), lease_s=15.0, poll_s=0.01
        )

    def run() -> None:
        with suppress(Killed):
            worker().run_one()

    running = Thread(target=run)
    running.start()
    assert all(helper.sent.wait(HANGS_S) for helper in helpers)
    if killed:
        running.join(HANGS_S)
    store.cancel(spec.job_id)
    running.join(HANGS_S)
    worker().run_one()
    job = store.get(spec.job_id)
    assert (job.state, job.is_closed, job.rounds_charged) == (JobState.CANCELLED, True, 0)

    assert [helper.arrive() for helper in helpers] == [JobReason.JOB_CLOSED] * 2
    assert reserved(scene, dataset) == [0, 0]
    scene.restart()
    assert reserved(scene, dataset) == [0, 0]
