"""What must hold of budgets, rounds and queries in a settled world.

What was released was charged, once, at both helpers.
"""

from collections import Counter
from collections.abc import Sequence

from adserver.records.dataset_state import DatasetState
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.store.datasets import DatasetStore
from adserver.store.queries import QueryStore
from helper.ledger.records import Reservation
from helper.ledger.spending import check_fits
from maskedlark.errors import JobRefused
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.counting import measurement_of
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec
from tests.simulation.in_the_clear import measured
from tests.simulation.ledger_view import HeldQuery
from tests.simulation.parties import HELPERS
from tests.simulation.world import World


def violations(world: World, jobs: Sequence[JobRecord]) -> list[str]:
    """Every invariant that does not hold, in words.

    The ledger of a helper whose past was brought back tells nothing.
    """
    intact = [name for name in HELPERS if name not in world.operators.restored]
    found = [
        problem
        for name in intact
        for problem in (*_rounds_are_charged(world, name, jobs), *_queries_are_charged(world, name))
    ]
    found += _answers_are_right(world)
    if len(intact) == len(HELPERS):
        found += [*_jobs_agree(world, jobs), *_queries_agree(world)]
    return found


def _rounds_are_charged(world: World, name: str, jobs: Sequence[JobRecord]) -> list[str]:
    """Released is charged; charged is released, but for the one answer that a crash or a cancellation may
    have kept back.
    """
    rounds, released = world.fleet.ledgers[name].rounds(), world.observer.rounds[name].keys()
    found = [
        f"{name} released round {index} of {job_id.hex()[:6]} uncharged"
        for job_id, index in released - rounds
    ]
    for job in jobs:
        of_job = {index for job_id, index in rounds if job_id == job.job_id}
        kept_back = {index for job_id, index in rounds - released if job_id == job.job_id}
        most = 0 if job.state is JobState.DONE else 1
        if len(kept_back) > most:
            found.append(
                f"{name} charged job {job.job_id.hex()[:6]} for rounds {kept_back} that it never released"
            )
        if of_job != set(range(len(of_job))) or len(of_job) > (job.rounds or 0):
            found.append(f"{name} charged job {job.job_id.hex()[:6]} for rounds {of_job}")
        if job.state is JobState.DONE and len(of_job) != job.rounds:
            found.append(
                f"{name} charged {len(of_job)} of the {job.rounds} rounds of finished job"
                f" {job.job_id.hex()[:6]}"
            )
        if of_job and job.job_id in world.desk.over_budget:
            found.append(
                f"{name} charged job {job.job_id.hex()[:6]} for rounds {of_job} although it was refused for"
                " its budget"
            )
    return found


def _jobs_agree(world: World, jobs: Sequence[JobRecord]) -> list[str]:
    """Both ledgers have charged a job alike, but for the round that was in flight when it was given up, and
    no job is left open.
    """
    found = []
    held = [{job.spec.job_id: job for job in world.fleet.ledgers[name].jobs()} for name in HELPERS]
    for job in jobs:
        answered = [
            of_helper[job.job_id].rounds_answered if job.job_id in of_helper else 0 for of_helper in held
        ]
        if abs(answered[0] - answered[1]) > (0 if job.state is JobState.DONE else 1):
            found.append(f"job {job.job_id.hex()[:6]} is charged for {answered} rounds")
        for name, of_helper in zip(HELPERS, held, strict=True):
            if job.job_id in of_helper and not of_helper[job.job_id].is_closed:
                found.append(f"{name} keeps budget for job {job.job_id.hex()[:6]}, which is {job.state}")
    return found


def _queries_are_charged(world: World, name: str) -> list[str]:
    """A query is charged once, and what left is what is stored."""
    held = world.fleet.ledgers[name].queries()
    counts = Counter(one.spec.query_id for one in held)
    found = [
        f"{name} charged query {query_id.hex()[:6]} {count} times"
        for query_id, count in counts.items()
        if count > 1
    ]
    stored = {one.spec.query_id: one.answer for one in held}
    for query_id, answer in world.observer.queries[name].items():
        if stored.get(query_id) != answer:
            found.append(
                f"{name} released query {query_id.hex()[:6]}, and holds another answer to it or none"
            )
    return found


def _queries_agree(world: World) -> list[str]:
    """Both hold the same query under an id; one of them alone holds only what the other's budget does not."""
    first, second = (
        {one.spec.query_id: one for one in world.fleet.ledgers[name].queries()} for name in HELPERS
    )
    found = []
    for query_id in first.keys() & second.keys():
        if first[query_id].spec != second[query_id].spec:
            found.append(f"the helpers charged two queries under the id {query_id.hex()[:6]}")
    for query_id in first.keys() ^ second.keys():
        name, one = (HELPERS[1], first[query_id]) if query_id in first else (HELPERS[0], second[query_id])
        if query_id in world.desk.results:
            found.append(f"query {query_id.hex()[:6]} was read, and is not charged at {name}")
        if _fits(world, name, one):
            found.append(f"query {query_id.hex()[:6]} is not charged at {name}, whose budget holds it")
    return found


def _fits(world: World, name: str, held: HeldQuery) -> bool:
    task = next(bundle.task for bundle in world.fleet.bundles.all if bundle.task.task_id == held.spec.task_id)
    before = world.fleet.ledgers[name].reservations(task.task_id).get(held.spec.dataset_id, [])
    try:
        check_fits(task, before, Reservation(spec=held.spec, rounds=1))
    except JobRefused:
        return False
    return True


def _answers_are_right(world: World) -> list[str]:
    """A query is read the same however often it is asked; and without noise as it would be in the clear."""
    found = []
    for query_id, results in world.desk.results.items():
        read = [
            {row.group: tuple(one.value for one in row.estimates) for row in result.rows}
            for result in results
        ]
        if any(again != read[0] for again in read[1:]):
            found.append(f"query {query_id.hex()[:6]} was read in two ways")
        spec = _stored_spec(world, query_id)
        task = world.fleet.bundles.exact.task
        if spec is None:
            found.append(f"query {query_id.hex()[:6]} was read, and is forgotten")
        elif isinstance(spec, QuerySpec) and results[0].mechanism is Mechanism.NONE:
            expected = measured(world, spec, measurement_of(task).min_cell_count)
            if read[0] != expected:
                found.append(f"query {query_id.hex()[:6]} was read as {read[0]}, and is {expected}")
    return found


def _stored_spec(world: World, query_id: bytes) -> AnyQuery | None:
    """The query as the ad server keeps it."""
    desk = world.fleet.desk()
    committed = [one for one in DatasetStore(desk.engine).all() if one.state is DatasetState.COMMITTED]
    specs = [spec for one in committed for spec in QueryStore(desk.engine).of_dataset(one.dataset_id or b"")]
    return next((spec for spec in specs if spec.query_id == query_id), None)
