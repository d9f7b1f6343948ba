"""What should come out, from what the browsers know.

No shares, no masks, no network, nothing that goes wrong.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from adserver.records.defaults import ALL, REST
from adserver.records.training_plan import TrainingPlan
from adserver.store.datasets import Dataset, DatasetStore
from adserver.training.trainer import Masters, Trainer
from helper.gradient.choose import choose_engine
from helper.releases.numerics import numerics_digest
from maskedlark.model.weights import decode
from maskedlark.numbers.field import to_signed
from maskedlark.numbers.fixed_point import decode_signed
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.dataset import canonical_order
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.report import Example, MeasuredValues
from tests.simulation.desk import MODEL
from tests.simulation.parties import HELPERS, PLACES
from tests.simulation.world import World

Cells = Mapping[tuple[str, ...], tuple[float, ...]]
"""The numbers of each group of a query."""

_DRAW_SAMPLE = JobSpec.draw_sample
"""The product's own, also while a test replaces it."""


def trained(world: World, plan: TrainingPlan) -> Masters:
    """The model of a job without noise."""
    people = _people(world, plan.job.dataset_id)
    features = np.stack([person.features for person in people])
    labels = np.array([[int(person.label or 0)] for person in people], np.uint32)
    engine = choose_engine(MODEL, plan.job.loss, plan.task.clip, plan.task.labels.size)
    pair, trainer = world.fleet.keys[HELPERS[0]].pair(plan.task, 0), Trainer(model=MODEL, plan=plan)
    for index in range(plan.job.rounds):
        weights = trainer.weights()
        script = plan.job.round_transcript(
            round_index=index, weights=weights, numerics=numerics_digest(engine)
        )
        rows = _DRAW_SAMPLE(plan.job, pair, index, script, len(people))
        rows &= rows.sum() >= plan.task.min_batch_size
        shares = InputShares(
            features=features[rows], labels=labels[rows], mask_shares=np.ones((int(rows.sum()), 1), np.uint64)
        )
        total = to_signed(engine.masked_sum(decode(weights, MODEL.parameters), shares).vector)
        trainer.step(decode_signed(total, plan.task.frac_bits) / plan.denominator)
    return trainer.values()


def measured(world: World, spec: QuerySpec, least: int) -> Cells:
    """The answer to a query without noise, grouped by place or not at all.

    Args:
        world: Where the dataset is.
        spec: The query.
        least: The task's min_cell_count: smaller cells show nothing, and their reports are in the rest, which
            a roll-up shows whatever its size.
    """
    purses = [person.measured for person in _people(world, spec.dataset_id) if person.measured is not None]
    purses = [purse for purse in purses if all(purse.keys[0] == one.code for one in spec.where)]
    if not spec.group_by:
        return {(): _sums(spec, purses, least)}
    cells: dict[tuple[str, ...], tuple[float, ...]] = {}
    if 0 in spec.levels:
        cells[ALL,] = _sums(spec, purses, least)
        purses = purses if len(purses) >= least else []
    by_place = [[purse for purse in purses if purse.keys[0] == code] for code in range(len(PLACES))]
    for place, group in zip(PLACES, by_place, strict=True):
        cells[place,] = _sums(spec, group, least)
    rest = [purse for group in by_place if len(group) < least for purse in group]
    cells[REST,] = _sums(spec, rest, 0 if spec.are_rests_shown else least)
    return cells


def chosen_ids(world: World, dataset: Dataset) -> NDArray[np.uint8]:
    """The ids of a dataset's reports at the ad server, u8 (n, 16), in canonical order."""
    store = DatasetStore(world.fleet.desk().engine)
    deleted = world.operators.gone.items()
    gone = [
        one for _, one in sorted((of.sequence, one) for one, of in deleted if of.handle == dataset.handle)
    ]
    taken = np.frombuffer(b"".join(gone), np.uint8).reshape(-1, 16) if gone else store.report_ids(dataset)
    ids = taken[store.is_chosen(dataset)]
    return ids[canonical_order(ids)]


def _people(world: World, dataset_id: bytes) -> list[Example]:
    stored = DatasetStore(world.fleet.desk().engine).all()
    (dataset,) = [one for one in stored if one.dataset_id == dataset_id]
    return [world.browsers.examples[one.tobytes()] for one in chosen_ids(world, dataset)]


def _sums(spec: QuerySpec, purses: Sequence[MeasuredValues], least: int) -> tuple[float, ...]:
    shown = purses if len(purses) >= least else []
    return tuple(
        float(len(shown) if one.value == "count" else sum(purse.values[0] for purse in shown))
        for one in spec.measures
    )
