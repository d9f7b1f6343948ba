"""Step 7 of a measurement: the answer to a query at one helper, as a pure function of its opened dataset.

    match -> cells of each level -> noisy counts decide which cells are shown -> sums in the field -> blind ->
    noise -> share

Which cells are shown is decided by noise that both helpers draw alike from their common key, so that they
leave out the same cells; the ad server sees sums of nothing plus noise there, as in a cell that is empty.
Reports of a cell that is not shown join the rest of the cell above. All of it follows the keys, which both
helpers read; no secret share is looked at before it is summed.

Source: the paper, section 3.3 (Algorithm 2) and 3.3.1.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.interrupt import Interrupt, interruptible, never
from maskedlark.numbers.field import FieldVector, from_limbs, multiply
from maskedlark.privacy.noise import NoiseSource, noise_vector
from maskedlark.randomness import Randomness
from maskedlark.releases.counting import (
    COUNT_UNITS,
    Condition,
    key_index,
    measurement_of,
)
from maskedlark.releases.query import Domain, QuerySpec
from maskedlark.releases.release import AggregateShare, blind
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.input_shares import InputShares, MeasuredShares
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.task import Task

CellIndex = NDArray[np.int64]
"""(n,) the cell of each record within its level, or `NOWHERE`."""

NOWHERE: Final = -1
# Records summed together: 2^20 times 2^32 stays exact in the float64 that numpy's bincount adds in.
_BLOCK: Final = 1 << 20
_LOW: Final = np.uint64(2**32 - 1)
_32: Final = np.uint64(32)


class _Level(NamedTuple):
    """The cells of one level before any is left out.

    `width` cells under each one above, the last of them its rest.

    Attributes:
        cell: Each record's own cell, or the rest where its code is outside the domain.
        rest: The rest under the cell above; NOWHERE at level 0, which has none.
        num_cells: Of the whole level.
        width: Cells under each one above.
    """

    cell: CellIndex
    rest: CellIndex
    num_cells: int
    width: int


def answer_query(
    *,
    task: Task,
    spec: QuerySpec,
    pair: PairKey,
    shares: InputShares,
    domains: Sequence[Domain],
    noise: NoiseSource,
    interrupt: Interrupt = never,
) -> AggregateShare:
    """Return one helper's share of the answer: (level, cell, column) in units, flattened. Called by a helper.

    `interrupt` is called for each level, and at least once every 2^20 records and every batch of noise; what
    it raises ends the work.

    Guarantees: without the other helper's answer to the same query the share is uniform. The sum of both
        shares is, of every cell that is shown, the sum of its records' values times their scale, and zero of
        the others, plus both helpers' noise. In a dataset of fewer than min_batch_size reports no cell is
        shown.
    """
    measurement, measured = measurement_of(task), shares_of_measurement(task, shares)
    cells = cells_to_show(
        task,
        spec,
        interruptible(pair.common_noise(spec.transcript), interrupt),
        measured,
        domains,
        interrupt=interrupt,
    )
    columns = [column for measure in spec.measures for column in measure.columns(measurement)]
    scales = [measure.scale for measure in spec.measures for _ in measure.columns(measurement)]
    sums = np.concatenate(
        [
            sum_groups(cell, measured.value_shares, columns, spec.num_cells(level), interrupt)
            for level, cell in zip(spec.levels, cells, strict=True)
        ]
    )
    return blind(
        pair=pair,
        release_transcript=spec.transcript,
        vector=multiply(sums, np.broadcast_to(np.array(scales, np.uint64), sums.shape)).reshape(-1),
        values_digest=sha256(b"".join(cell.astype("<i4").tobytes() for cell in cells)).digest(),
        noise=noise(task.mechanism, spec.noise_units(task), spec.num_numbers(task)),
    )


def cells_to_show(
    task: Task,
    spec: QuerySpec,
    common: Randomness,
    measured: MeasuredShares,
    domains: Sequence[Domain],
    *,
    interrupt: Interrupt = never,
) -> tuple[CellIndex, ...]:
    """Return each record's cell at each level of a query, after suppressing cells that are too small.

    First all cells' noisy counts are compared with k. From the coarsest level on, records of a cell that
    fails move to the rest of their group, and into no cell at finer levels. Then the rests' noisy counts
    are compared with k too, unless the query shows rests whatever their size.
    """
    measurement = measurement_of(task)
    levels = _levels(measurement, spec, measured, domains, interrupt)
    # All noisy counts are drawn before any cell is placed, so that both helpers read the common stream in one
    # order.
    is_shown = [_is_enough(task, spec, common, level.cell, level.num_cells) for level in levels]
    # The dataset's size is public, so comparing it with k without noise reveals nothing.
    alive = np.full(len(measured.keys), len(measured.keys) >= task.min_batch_size)
    placed: list[CellIndex] = []
    for level, shown in zip(levels, is_shown, strict=True):
        interrupt()
        own = alive & (level.cell >= 0) & (level.cell != level.rest)
        alive_own = own & shown[level.cell]  # cell -1 reads the last one, and counts for nothing
        in_rest = alive & (level.rest >= 0) & ~alive_own
        placed.append(np.where(alive_own, level.cell, np.where(in_rest, level.rest, NOWHERE)))
        alive = alive_own
    if spec.are_rests_shown:
        return tuple(placed)
    return tuple(
        _without_small_rests(task, spec, common, level, cell)
        for level, cell in zip(levels, placed, strict=True)
    )


def sum_groups(
    cell: CellIndex,
    value_shares: FieldVector,
    columns: Sequence[int],
    count: int,
    interrupt: Interrupt = never,
) -> FieldVector:
    """Return the field sums of some columns over the records of each cell.

    Shapes: cell (n,), value_shares (n, W) -> (count, len(columns)).

    The shares' 32-bit halves are added as float64, exactly within a block of 2^20 records, and from block to
    block as integers.
    """
    low = np.zeros((count, len(columns)), np.uint64)
    high = np.zeros_like(low)
    for start in range(0, len(cell), _BLOCK):
        interrupt()
        here = cell[start : start + _BLOCK]
        rows = np.flatnonzero(here >= 0)
        cells = here[rows]
        block = value_shares[start : start + _BLOCK]
        for place, column in enumerate(columns):
            shares = block[rows, column]
            low[:, place] += np.bincount(cells, weights=shares & _LOW, minlength=count).astype(np.uint64)
            high[:, place] += np.bincount(cells, weights=shares >> _32, minlength=count).astype(np.uint64)
    return from_limbs(low, high)


def _levels(
    measurement: Measurement,
    spec: QuerySpec,
    measured: MeasuredShares,
    domains: Sequence[Domain],
    interrupt: Interrupt,
) -> list[_Level]:
    """Return every record's cell and rest at each released level, for records that match the query."""
    parent = np.where(matching(measurement, measured, spec.where), 0, NOWHERE)
    levels = [_Level(parent, np.full_like(parent, NOWHERE), 1, 1)] if spec.levels[0] == 0 else []
    for depth, (axis, domain) in enumerate(zip(spec.group_by, domains, strict=True), start=1):
        interrupt()
        position = _positions(measured.keys[:, key_index(measurement, axis.key)], axis.size, domain)
        if depth in spec.levels:
            rest = np.where(parent >= 0, parent * (axis.size + 1) + axis.size, NOWHERE)
            own = np.where((parent >= 0) & (position >= 0), parent * (axis.size + 1) + position, rest)
            levels.append(_Level(own, rest, spec.num_cells(depth), axis.size + 1))
        parent = np.where((parent >= 0) & (position >= 0), parent * axis.size + position, NOWHERE)
    return levels


def _positions(codes: NDArray[np.uint32], size: int, domain: Domain) -> NDArray[np.int64]:
    """Return the position of each code in a domain, or NOWHERE."""
    if domain is None:
        return np.where(codes < size, codes.astype(np.int64), NOWHERE)
    place = np.searchsorted(domain, codes)
    # Beyond the last code: any place will do, as the comparison fails there.
    place[place == len(domain)] = 0
    return np.where(domain[place] == codes, place, NOWHERE)


def matching(
    measurement: Measurement, measured: MeasuredShares, where: Sequence[Condition]
) -> NDArray[np.bool_]:
    """Return (n,) whether each record meets all of a query's conditions."""
    matches = np.ones(len(measured.keys), np.bool_)
    for condition in where:
        matches &= measured.keys[:, key_index(measurement, condition.key)] == condition.code
    return matches


def _is_enough(
    task: Task, spec: QuerySpec, common: Randomness, cell: CellIndex, count: int
) -> NDArray[np.bool_]:
    """Return (count,) whether each cell's noisy number of records reaches k, and a strict task's margin."""
    records = np.bincount(cell[cell >= 0], minlength=count).astype(np.int64)
    noise = noise_vector(task.mechanism, spec.count_noise_units(task), count, common)
    least = measurement_of(task).min_cell_count * COUNT_UNITS + spec.cell_margin(task)
    enough: NDArray[np.bool_] = records * COUNT_UNITS + noise >= least
    return enough


def _without_small_rests(
    task: Task, spec: QuerySpec, common: Randomness, level: _Level, cell: CellIndex
) -> CellIndex:
    """Return the same cells, without the rests that are too small."""
    if level.width == 1:
        return cell  # level 0 has no rest
    in_rest = (cell >= 0) & (cell == level.rest)
    above = np.where(in_rest, cell // level.width, NOWHERE)
    enough = _is_enough(task, spec, common, above, level.num_cells // level.width)
    return np.where(in_rest & ~enough[above], NOWHERE, cell)


def shares_of_measurement(task: Task, shares: InputShares) -> MeasuredShares:
    """Return the keys and value shares of a dataset of a task with a measurement."""
    if shares.measured is None:
        raise AssertionError("the dataset has no keys and values, although its task has a measurement")
    return shares.measured
