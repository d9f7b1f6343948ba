"""Step 6 of a measurement: a query, in the form that both helpers store.

Only this module bounds how much a report can change the sums of a query. How much it can change their counts
is in `maskedlark.releases.counting`.

A query sums values over groups of reports. `group_by` names keys, each with a domain of codes. The cells of
*level* l are the combinations of codes of the first l keys. For the l-th key there is one more cell, the
rest: reports whose code is outside the domain, or whose cell is too small to be shown. Level 0 is one cell.
Levels that are released together roll up: cells add to the cell above them, and all of them are charged
together. In a roll-up from the total on, rests may be shown whatever their size (`are_rests_shown`): a rest
is what its group's shown cells leave of the cell above, which is released too, so hiding it hides nothing.

A *discovery* (`maskedlark.releases.discovery`) asks which codes of some keys occur at all, so that a domain
need not be known beforehand.
"""

from dataclasses import replace
from enum import StrEnum, unique
from operator import not_
from typing import Annotated, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import Bytes16, Bytes32, canonical, digest
from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.field import SignedVector
from maskedlark.numbers.fixed_point import check_no_overflow
from maskedlark.numbers.lengths import root_up
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.counting import (
    MAX_MULTIPLIER,
    VERSION,
    Condition,
    CountingQuery,
    Multiplier,
    count_charge,
    key_index,
    measurement_of,
)
from maskedlark.releases.possible_sums import check_within
from maskedlark.releases.release import (
    charge_of,
    multiplier_for_each_helper,
    noise_of_both,
    units_of_each_helper,
)
from maskedlark.reports.measurement import COUNT, MAX_KEYS, MAX_VALUES, Measurement, Name
from maskedlark.reports.task import Task

MAX_NUMBERS: Final = 1 << 20
"""The most numbers (cells times columns, all levels) in one answer."""
MAX_DOMAIN: Final = 1 << 20

THRESHOLD_RATIO: Final = 4.0
"""How much more noise a planned query puts on counts than on sums.

Of the same epsilon the sums then bear an eighth more noise than without the counts (Laplace: half more)."""

Domain: TypeAlias = NDArray[np.uint32] | None
"""The codes of one axis, ascending; None for 0 to its size less one."""


@unique
class MeasureKind(StrEnum):
    """What is summed of a value."""

    SUM = "sum"
    """The value itself: one column."""
    HISTOGRAM = "histogram"
    """How many reports hold a value in each bucket: one column a bucket."""


@canonical
class Measure:
    """One value of a query.

    Attributes:
        value: A declared value, or count.
        kind: What is summed of it.
        scale: The units that one of the value is carried as; it weighs the value's part of the common
            sensitivity.
    """

    value: Name
    kind: MeasureKind = MeasureKind.SUM
    scale: Annotated[int, Field(ge=1, le=1 << 31)]

    def columns(self, measurement: Measurement) -> range:
        """Return which of a report's value shares a measure sums.

        Raises:
            JobRefused(UNDECLARED)
        """
        columns = measurement.columns(self.value)
        if columns is None:
            known = ", ".join([COUNT, *(value.name for value in measurement.values)])
            raise JobRefused(
                JobReason.UNDECLARED, f"the task declares no value {self.value!r}; it declares {known}"
            )
        match self.kind:
            case MeasureKind.SUM:
                return range(columns.value, columns.value + 1)
            case MeasureKind.HISTOGRAM:
                if not columns.buckets:
                    raise JobRefused(
                        JobReason.UNDECLARED,
                        f"the task declares no buckets for {self.value!r}, so it has no histogram: "
                        "use another value or another task",
                    )
                return range(columns.value + 1, columns.value + 1 + columns.buckets)

    def report_range(self, measurement: Measurement) -> tuple[int, int]:
        """Return the least and the most that a report adds to one column of a measure; 0 is within."""
        value = measurement.value(self.value)
        match self.kind:
            case MeasureKind.HISTOGRAM:
                return 0, 1
            case MeasureKind.SUM:
                return (0, 1) if value is None else (min(0, value.low), max(0, value.high))

    def bound(self, measurement: Measurement) -> int:
        """Return the most that a report adds to a measure, in its own unit."""
        low, high = self.report_range(measurement)
        return max(-low, high)


@canonical
class Axis:
    """One key to group by, and the codes that get separate cells.

    Attributes:
        key: A declared key.
        size: How many codes.
        codes_digest: `codes_digest` of the codes, which the query's attachment holds; None: the codes 0 to
            size - 1.
    """

    key: Name
    size: Annotated[int, Field(ge=1, le=MAX_DOMAIN)]
    codes_digest: Bytes32 | None = None


@canonical
class QuerySpec(CountingQuery):
    """Sums of values over groups of a dataset's reports, released once.

    Attributes:
        version: The protocol's version.
        query_id: 16 random bytes; a helper refuses the same id with another content.
        task_id: The task; its bounds, mechanism and budgets are not the query's to set.
        dataset_id: The dataset.
        measures: What is summed, released together.
        group_by: The keys of the groups, the coarsest first.
        levels: Which levels are released, ascending without gaps; the last one groups by all keys.
        where: All of these hold of a summed report.
        noise_multiplier: The noise scale divided by the sensitivity, as in a job; 0 only in a task without
            noise.
        threshold_noise_multiplier: The same, of the noise on the counts that decide which cells are shown.
        are_rests_shown: Whether rests are shown whatever their size. Only of a roll-up from the total on, and
            not in a task that hides small cells strictly.
    """

    kind: ClassVar[str] = "query"

    version: Literal[1] = VERSION
    query_id: Bytes16
    task_id: Bytes32
    dataset_id: Bytes32
    measures: Annotated[tuple[Measure, ...], Field(min_length=1, max_length=2 * MAX_VALUES)]
    group_by: Annotated[tuple[Axis, ...], Field(max_length=MAX_KEYS)] = ()
    levels: Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_KEYS)], ...], Field(min_length=1)]
    where: Annotated[tuple[Condition, ...], Field(max_length=MAX_KEYS)] = ()
    noise_multiplier: Multiplier
    threshold_noise_multiplier: Multiplier
    are_rests_shown: Annotated[bool, Field(exclude_if=not_)] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.levels != tuple(range(self.levels[0], len(self.group_by) + 1)):
            raise ValueError("levels must ascend without gaps to the number of keys in group_by")
        for names in ([axis.key for axis in self.group_by], [one.key for one in self.where]):
            if len(set(names)) != len(names):
                raise ValueError("keys must be distinct")
        if len({(one.value, one.kind) for one in self.measures}) != len(self.measures):
            raise ValueError("measures must be distinct")
        # A rest is the cell above less the shown ones: showing it tells nothing only where those are all
        # released.
        if self.are_rests_shown and not (self.group_by and self.levels[0] == 0):
            raise ValueError("are_rests_shown requires groups, and all levels from the total on")
        return self

    @property
    def count_lists(self) -> int:
        """A report is in one cell of each level."""
        return len(self.levels)

    @property
    def count_multiplier(self) -> float:
        """The noise multiplier on the counts that decide which cells are shown."""
        return self.threshold_noise_multiplier

    def num_cells(self, level: int) -> int:
        """Return the number of cells of one level."""
        cells = 1
        for depth, axis in enumerate(self.group_by[:level], start=1):
            # A rest is only at the level itself: finer levels do not divide it.
            cells *= axis.size + (depth == level)
        return cells

    def check(self, task: Task, *, records: int) -> None:
        """Refuse a query that cannot be answered. Called by all parties before anything is charged.

        Raises:
            JobRefused(UNDECLARED, DOMAIN_TOO_LARGE, NOISE_OUT_OF_RANGE, OVERFLOW)
        """
        measurement = self.check_conditions(task)
        if self.are_rests_shown and measurement.small_cell_delta is not None:
            raise JobRefused(
                JobReason.MALFORMED,
                "are_rests_shown is true, but this task hides small cells strictly (small_cell_delta): "
                "leave it out",
            )
        for axis in self.group_by:
            key_index(measurement, axis.key)
        numbers = self.num_numbers(task)
        if numbers > MAX_NUMBERS:
            raise JobRefused(
                JobReason.DOMAIN_TOO_LARGE,
                f"the answer would contain {numbers} numbers, the limit is {MAX_NUMBERS}: use fewer "
                "keys, codes or values",
            )
        self.count_noise_units(task)
        check_no_overflow(
            records=records,
            # In L1, which bounds what a report adds to any one number under either mechanism.
            sensitivity=self.sensitivity(measurement, Mechanism.LAPLACE),
            noise_bound=noise_of_both(task, self.noise_units(task), numbers),
        )

    def num_columns(self, task: Task) -> int:
        """Return the number of columns of every cell, all measures together."""
        return sum(len(measure.columns(measurement_of(task))) for measure in self.measures)

    def num_numbers(self, task: Task) -> int:
        """Return the length of the answer."""
        return sum(self.num_cells(level) for level in self.levels) * self.num_columns(task)

    def sensitivity(self, measurement: Measurement, mechanism: Mechanism) -> int:
        """Return the most that one report changes a query's sums, in units: L1 for Laplace, otherwise L2.

        The only place that says so.

        A report is in at most one cell of each level. There it adds scale times its value to the column of a
        sum, at most scale times the value's bound, and scale to one column of a histogram.
        """
        bounds = [measure.scale * measure.bound(measurement) for measure in self.measures]
        match mechanism:
            case Mechanism.LAPLACE:
                return len(self.levels) * sum(bounds)
            case Mechanism.GAUSSIAN | Mechanism.NONE:
                return root_up(len(self.levels) * sum(bound * bound for bound in bounds))

    def noise_units(self, task: Task) -> int:
        """Return each helper's noise scale on every sum of a query.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE)
        """
        return units_of_each_helper(
            task, self.noise_multiplier, self.sensitivity(measurement_of(task), task.mechanism)
        )

    def check_possible(self, task: Task, total: SignedVector, *, records: int) -> None:
        """Refuse an answer that honest reports cannot have. Called by the ad server before it reads one.

        A report is in one cell of each level at most, and adds a value within its range, or nothing.

        Raises:
            JobRefused(SUM_OUT_OF_RANGE)
        """
        measurement = measurement_of(task)
        least: list[int] = []
        most: list[int] = []
        for measure in self.measures:
            low, high = measure.report_range(measurement)
            columns = len(measure.columns(measurement))
            least += [records * measure.scale * low] * columns
            most += [records * measure.scale * high] * columns
        noise = noise_of_both(task, self.noise_units(task), len(total))
        check_within(total.reshape(-1, len(least)), least=least, most=most, noise=noise, records=records)

    def decode_domains(self, encoded: bytes) -> list[Domain]:
        """Decode the codes of a query's axes.

        U32 little-endian, one axis with a digest after the other. Called by a helper.

        Raises:
            JobRefused(MALFORMED): not as many codes as the axes say, not ascending, or not of their digest.
        """
        listed = [axis for axis in self.group_by if axis.codes_digest is not None]
        if len(encoded) != 4 * sum(axis.size for axis in listed):
            raise JobRefused(JobReason.MALFORMED, "the number of domain codes differs from the query's axes")
        codes = np.frombuffer(encoded, "<u4").astype(np.uint32)
        domains: list[Domain] = []
        for axis in self.group_by:
            if axis.codes_digest is None:
                domains.append(None)
                continue
            own, codes = codes[: axis.size], codes[axis.size :]
            # Ascending, for records' codes are found by bisection.
            if codes_digest(own) != axis.codes_digest or (own[1:] <= own[:-1]).any():
                raise JobRefused(
                    JobReason.MALFORMED,
                    f"the codes sent for key {axis.key!r} are not the ascending list that the query names",
                )
            domains.append(own)
        return domains

    def charges(self, task: Task, rounds: int = 1) -> tuple[Charge, ...]:
        """Return the charges of a query: its sums, and all its noisy counts. Called by all parties."""
        # The cells are compared with k first, and then the rests that may be hidden, of what the cells left.
        looks = 2 if self.group_by and not self.are_rests_shown else 1
        counts = count_charge(task, self.threshold_noise_multiplier, rounds=looks)
        return (charge_of(task, self.noise_multiplier), counts) * rounds

    def with_noise(self, task: Task, each_helpers: float) -> Self:
        """Return this query with this noise of each helper, and `THRESHOLD_RATIO` times it on the counts."""
        return replace(
            self,
            noise_multiplier=multiplier_for_each_helper(task, each_helpers),
            threshold_noise_multiplier=min(MAX_MULTIPLIER, THRESHOLD_RATIO * each_helpers),
        )


def codes_digest(codes: NDArray[np.uint32]) -> bytes:
    """Return the digest of a list of codes: u32 (n,), ascending."""
    return digest("domain", codes.astype("<u4").tobytes())
