"""What must hold of reports and jobs in a settled world, whatever went wrong on the way.

`tests.simulation.charges` has the rest.
"""

from collections import Counter
from itertools import chain

from sqlalchemy import select

from adserver.records.dataset_state import DatasetState
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.records.training_plan import TrainingPlan
from adserver.store.datasets import DatasetStore
from adserver.store.job_folder import JobFolder
from adserver.store.jobs import JobStore
from adserver.store.schema import reports
from adserver.training.trainer import Checkpoint
from maskedlark.errors import JobReason
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.runtime.database import reading
from tests.simulation import charges
from tests.simulation.in_the_clear import chosen_ids, trained
from tests.simulation.parties import HELPERS
from tests.simulation.world import World


def violations(world: World) -> list[str]:
    """Every invariant that does not hold, in words."""
    desk = world.fleet.desk()
    jobs = JobStore(desk.engine, desk.process.clock).all()
    found = [*_reports_are_kept(world), *_reports_count_once(world), *charges.violations(world, jobs)]
    return found + [problem for job in jobs for problem in _ended_well(world, job)]


def _reports_are_kept(world: World) -> list[str]:
    """What was acknowledged is stored, or was until its task was over, and everything is stored once."""
    with reading(world.fleet.desk().engine) as connection:
        rows = connection.execute(select(reports.c.report_id, reports.c.sequence)).all()
    gone = {(one, of.sequence) for one, of in world.operators.gone.items()}
    stored = Counter(one for one, _ in gone | {(bytes(one), sequence) for one, sequence in rows})
    found = [
        f"report {one.hex()[:6]} was acknowledged and is lost"
        for one in world.browsers.acknowledged - stored.keys()
    ]
    return found + [
        f"report {one.hex()[:6]} is stored {count} times" for one, count in stored.items() if count > 1
    ]


def _reports_count_once(world: World) -> list[str]:
    """Whatever a helper ever committed, no report is in two of its datasets.

    And both hold every dataset of the ad server, alike.
    """
    found = []
    datasets = [
        one for one in DatasetStore(world.fleet.desk().engine).all() if one.state is DatasetState.COMMITTED
    ]
    for name in HELPERS:
        committed = world.operators.committed_reports(name)
        counts = Counter(chain.from_iterable(committed.values()))
        found += [
            f"{name} counts report {one.hex()[:6]} {count} times"
            for one, count in counts.items()
            if count > 1
        ]
        for dataset in datasets:
            if (
                committed.get(dataset.dataset_id or b"")
                != chosen_ids(world, dataset).view("V16").ravel().tolist()
            ):
                found.append(f"{name} holds other reports in a dataset than the ad server")
    return found


def _ended_well(world: World, job: JobRecord) -> list[str]:
    """A job is done, or somebody gave it up, or a helper had lost its ledger.

    One that is done without noise has the right bits.
    """
    name = f"job {job.job_id.hex()[:6]}"
    if job.state is JobState.CANCELLED and job.job_id in world.desk.given_up:
        return []
    if (
        job.state is JobState.REFUSED
        and world.operators.restored
        and job.stop
        and job.stop.reason == JobReason.LEDGER_ROLLED_BACK
    ):
        return []
    if job.state is not JobState.DONE:
        return [f"{name} is {job.state}: {job.stop}"]
    desk = world.fleet.desk()
    history = [
        figures.rounds_done for figures in JobStore(desk.engine, desk.process.clock).history(job.job_id)
    ]
    if history != list(range(1, (job.rounds or 0) + 1)):
        return [f"{name} has the history {history}"]
    if not isinstance(job.plan, TrainingPlan) or job.plan.task.mechanism is not Mechanism.NONE:
        return []
    stored = JobFolder(world.fleet.data_dir, job.job_id).checkpoint()
    values = Checkpoint.decode(stored).values() if stored else ()
    expected = trained(world, job.plan)
    is_right = [value.tobytes() for value in values] == [value.tobytes() for value in expected]
    return [] if is_right else [f"{name} has not the bits of the run without faults"]
