"""What must hold in a settled world, whatever went wrong on the way."""

import sqlite3
from collections import Counter

import numpy as np
from sqlalchemy import select

from adserver.database import reading
from adserver.datasets import Dataset, DatasetState, DatasetStore
from adserver.job_folder import JobFolder
from adserver.job_state import JobState
from adserver.job_store import JobRecord, JobStore
from adserver.plan import TrainingPlan
from adserver.reports import reports
from adserver.training import Checkpoint, Masters, Trainer
from helper.core import HelperCore
from helper.gradient.choose import engine_for
from helper.numerics import numerics_digest
from maskedlark.dataset import canonical_order
from maskedlark.field import to_signed
from maskedlark.fixed_point import decode_signed
from maskedlark.model.weights import decode
from maskedlark.report import InputShares
from maskedlark.round import transcript
from tests.simulation.fleet import HELPERS
from tests.simulation.observer import charged
from tests.simulation.world import MODEL, World


def violations(world: World) -> list[str]:
    """Every invariant that does not hold, in words."""
    desk = world.fleet.desk()
    jobs = JobStore(desk.engine, desk.process.clock).all()
    datasets = [one for one in DatasetStore(desk.engine).all() if one.state is DatasetState.COMMITTED]
    found = [*_reports_are_kept(world), *_reports_count_once(world, datasets), *_charges_are_right(world, jobs)]
    return found + [problem for job in jobs for problem in _ended_well(world, job)]


def _reports_are_kept(world: World) -> list[str]:
    """What was acknowledged is stored, and everything is stored once."""
    with reading(world.fleet.desk().engine) as connection:
        stored = Counter(bytes(one) for one in connection.execute(select(reports.c.report_id)).scalars())
    found = [f"report {one.hex()[:6]} was acknowledged and is lost" for one in world.acknowledged - stored.keys()]
    return found + [f"report {one.hex()[:6]} is stored {count} times" for one, count in stored.items() if count > 1]


def _reports_count_once(world: World, datasets: list[Dataset]) -> list[str]:
    """Whatever a helper ever committed, no report is in two of its datasets; and both hold every dataset of the ad server, alike."""
    found = []
    for name in HELPERS:
        core: HelperCore = world.fleet.running[name].part
        counts: Counter[bytes] = Counter()
        for dataset_id in _dataset_ids(world, name):
            counts.update(core.datasets._vault.read(dataset_id).report_ids.view("V16").ravel().tolist())
        found += [f"{name} counts report {one.hex()[:6]} {count} times" for one, count in counts.items() if count > 1]
        for dataset in datasets:
            ids = core.datasets._vault.read(dataset.dataset_id or b"").report_ids
            if ids.tobytes() != _chosen_ids(world, dataset).tobytes():
                found.append(f"{name} holds other reports in a dataset than the ad server")
    return found


def _charges_are_right(world: World, jobs: tuple[JobRecord, ...]) -> list[str]:
    """Released is charged; charged is released, but for the one answer that a crash or a cancellation may have kept back."""
    found = []
    for name in HELPERS:
        rounds, released = charged(world.fleet, name), world.observer.released[name].keys()
        found += [f"{name} released round {index} of {job_id.hex()[:6]} uncharged" for job_id, index in released - rounds]
        for job in jobs:
            of_job = {index for job_id, index in rounds if job_id == job.job_id}
            kept_back = {index for job_id, index in rounds - released if job_id == job.job_id}
            most = 0 if job.state is JobState.DONE else 1
            if len(kept_back) > most:
                found.append(f"{name} charged job {job.job_id.hex()[:6]} for rounds {kept_back} that it never released")
            if of_job != set(range(len(of_job))) or len(of_job) > job.plan.job.rounds:
                found.append(f"{name} charged job {job.job_id.hex()[:6]} for rounds {of_job}")
            if job.state is JobState.DONE and len(of_job) != job.plan.job.rounds:
                found.append(f"{name} charged {len(of_job)} of the {job.plan.job.rounds} rounds of finished job {job.job_id.hex()[:6]}")
    return found


def _ended_well(world: World, job: JobRecord) -> list[str]:
    """A job is done or was cancelled; and one that is done has the bits of training in the clear."""
    name = f"job {job.job_id.hex()[:6]}"
    if job.state is JobState.CANCELLED:
        return []
    if job.state is not JobState.DONE:
        return [f"{name} is {job.state}: {job.stop}"]
    stored = JobFolder(world.fleet.data_dir, job.job_id).checkpoint()
    values = Checkpoint.decode(stored).values() if stored else ()
    expected = trained_in_the_clear(world, job.plan)
    if [value.tobytes() for value in values] != [value.tobytes() for value in expected]:
        return [f"{name} has not the bits of the run without faults"]
    desk = world.fleet.desk()
    history = [figures.rounds_done for figures in JobStore(desk.engine, desk.process.clock).history(job.job_id)]
    return [] if history == list(range(1, job.plan.job.rounds + 1)) else [f"{name} has the history {history}"]


def trained_in_the_clear(world: World, plan: TrainingPlan) -> Masters:
    """The model of a run in which nothing goes wrong, from what the browsers know: no shares, no masks, no network."""
    desk = world.fleet.desk()
    (dataset,) = [one for one in DatasetStore(desk.engine).all() if one.dataset_id == plan.job.dataset_id]
    people = [world.examples[one.tobytes()] for one in _chosen_ids(world, dataset)]
    features = np.stack([person.features for person in people])
    labels = np.array([[int(person.label or 0)] for person in people], np.uint32)
    engine = engine_for(MODEL, plan.job.loss, plan.task.clip, plan.task.labels.size)
    pair, trainer = world.fleet.keys[HELPERS[0]].pair(plan.task, 0), Trainer(model=MODEL, plan=plan)
    for index in range(plan.job.rounds):
        weights = trainer.weights()
        script = transcript(plan.job, round_index=index, weights=weights, numerics=numerics_digest(engine))
        rows = pair.sample(script, len(people), plan.job.sampling_numerator)
        rows &= rows.sum() >= plan.task.min_batch_size
        shares = InputShares(features=features[rows], labels=labels[rows], mask_shares=np.ones((int(rows.sum()), 1), np.uint64))
        total = to_signed(engine.masked_sum(decode(weights, MODEL.parameters), shares).vector)
        trainer.step(decode_signed(total, plan.task.frac_bits) / plan.denominator)
    return trainer.values()


def _chosen_ids(world: World, dataset: Dataset) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """The ids of a dataset's reports at the ad server, u8 (n, 16), in canonical order."""
    store = DatasetStore(world.fleet.desk().engine)
    ids = store.report_ids(dataset)[store.is_chosen(dataset)]
    return ids[canonical_order(ids)]


def _dataset_ids(world: World, name: str) -> list[bytes]:
    with sqlite3.connect(world.fleet.ledger_path(name)) as connection:
        found = [bytes(row[0]) for row in connection.execute("SELECT dataset_id FROM datasets")]
    connection.close()
    return found
