"""A job whose rounds need more memory than one helper of two gives: it costs nothing, keeps its budget at the
other helper as long as it can be resumed, and gives it back when it is cancelled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest

from adserver.peers.retrying import Backoff
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.store.database import create_tables, default_url
from adserver.store.job_files import submit
from adserver.store.jobs import JobStore
from adserver.training.worker import JobWorker
from helper.releases.answering import Call
from maskedlark.canonical import encode
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.started_job import StartedJob
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import SetClock
from tests.helper.parties import FLOORS, MODEL, NUM_VALUES, Scene
from tests.patience import HANGS_S
from tests.training_plans import training_plan

ROUNDS = 3


@dataclass
class Direct:
    """A real helper, without a network. Starts a job after another helper did."""

    scene: Scene
    role: int
    after: Event | None = None
    has_started: Event = field(default_factory=Event)

    def start_job(self, job: JobSpec, model: bytes) -> StartedJob:
        assert self.after is None or self.after.wait(HANGS_S)
        started = self.scene.cores[self.role].jobs.start(encode(job), model, Call(caller=None))
        self.has_started.set()
        return started

    def run_round(
        self, job: JobSpec, round_index: int, weights: bytes, *_: object, **__: object
    ) -> AggregateShare:
        return AggregateShare.decode(self.scene.answer(self.role, job, round_index, weights), NUM_VALUES)

    def close_job(self, job: JobSpec) -> int:
        return self.scene.cores[self.role].jobs.close(encode(job), None)


def reserved_rounds(scene: Scene, spec: JobSpec) -> list[int]:
    return [
        sum(one.rounds for one in core.queries.ledger.reservations(spec.dataset_id)) for core in scene.cores
    ]


def set_limit(scene: Scene, max_round_bytes: int) -> None:
    """Start the helpers again, the second one with a limit of its own."""
    scene.parties[1].floors = replace(FLOORS, max_round_bytes=max_round_bytes)
    scene.restart()


def cancel(store: JobStore, spec: JobSpec) -> None:
    store.cancel(spec.job_id)


def resume(store: JobStore, spec: JobSpec) -> None:
    store.resume(spec.job_id)


@pytest.mark.parametrize(
    ("then", "state", "left"),
    [(cancel, JobState.CANCELLED, [0, 0]), (resume, JobState.DONE, [ROUNDS, ROUNDS])],
    ids=["cancelled", "resumed with a higher limit"],
)
def test_a_job_that_one_helper_refuses_for_its_memory_stays_open_at_the_other_one_until_it_is_cancelled(
    tmp_path: Path, then: Callable[[JobStore, JobSpec], None], state: JobState, left: list[int]
) -> None:
    scene = Scene(tmp_path / "helpers", mechanism="gaussian", epsilon=2.0, collusion_epsilon=1000.0)
    spec = scene.job(scene.seal(), rounds=ROUNDS, noise_multiplier=10.0)
    set_limit(scene, 1)
    engine, clock = open_database(default_url(tmp_path)), SetClock()
    create_tables(engine)
    store = JobStore(engine, clock)
    plan = training_plan(scene.task, spec, records=20)
    submit(engine, tmp_path, plan, model=MODEL, eval_set=None, clock=clock)
    first = Direct(scene, 0)
    helpers = (first, Direct(scene, 1, after=first.has_started))
    worker = JobWorker(engine, helpers, tmp_path, clock, backoff=Backoff(give_up_after_s=0.1))

    def run() -> JobRecord:
        worker.run_one()
        return store.get(spec.job_id)

    refused = run()
    assert refused.stop is not None
    assert (refused.state, refused.stop.reason, refused.is_closed) == (JobState.REFUSED, "too_large", False)
    assert "--max-round-bytes" in refused.stop.cause
    assert reserved_rounds(scene, spec) == [ROUNDS, 0]

    set_limit(scene, FLOORS.max_round_bytes)
    then(store, spec)
    over = run()
    assert (over.state, over.is_closed, over.rounds_charged) == (state, True, left[0])
    assert reserved_rounds(scene, spec) == left
    engine.dispose()
