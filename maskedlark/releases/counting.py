"""What all queries have in common that compare counts of reports with k: sums over groups, and discoveries.

Their conditions, how much one report can change their counts, and the noise on these and its charge.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Final

from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.lengths import root_up
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import beyond_bits, noise_scale
from maskedlark.releases.release import AnsweredOnce, check_noise_fits_task
from maskedlark.reports.measurement import MAX_CODE, Measurement, Name
from maskedlark.reports.task import Task

VERSION: Final = 1
"""Of queries and discoveries."""
COUNT_UNITS: Final = 1 << 16
"""Counts of reports are compared with k, and noised, in units of 2^-16."""
MAX_MULTIPLIER: Final = 4e6

Multiplier = Annotated[float, Field(ge=0.0, le=MAX_MULTIPLIER)]


@canonical
class Condition:
    """Only reports whose key has this code are summed."""

    key: Name
    code: Annotated[int, Field(ge=0, le=MAX_CODE)]


def measurement_of(task: Task) -> Measurement:
    """Return the task's measurement.

    Raises:
        JobRefused(UNDECLARED): nothing.
    """
    if task.measurement is None:
        raise JobRefused(
            JobReason.UNDECLARED,
            "the task declares no measurement: use it for training only, or create a task with --measurement",
        )
    return task.measurement


def key_index(measurement: Measurement, name: str) -> int:
    """Return the position of a key in a report.

    Raises:
        JobRefused(UNDECLARED)
    """
    index = measurement.key_index(name)
    if index is None:
        known = ", ".join(key.name for key in measurement.keys) or "none"
        raise JobRefused(JobReason.UNDECLARED, f"the task declares no key {name!r}; it declares {known}")
    return index


class CountingQuery(AnsweredOnce, ABC):
    """A query that compares counts of reports with k: sums over groups, and discoveries.

    Attributes:
        where: All of these hold of a counted report.
    """

    __slots__ = ()

    where: tuple[Condition, ...]
    noise_multiplier: float

    @property
    @abstractmethod
    def count_lists(self) -> int:
        """The most counts that one report is in: one of each list."""

    @property
    @abstractmethod
    def count_multiplier(self) -> float:
        """The noise multiplier on the counts."""

    def check_conditions(self, task: Task) -> Measurement:
        """Return the task's measurement, after checking a query's conditions and noise against it."""
        measurement = measurement_of(task)
        for condition in self.where:
            key_index(measurement, condition.key)
        check_noise_fits_task(task, self.noise_multiplier, whose="query")
        return measurement

    def count_sensitivity(self, mechanism: Mechanism) -> int:
        """Return the most that one report changes the counts compared with k at once, in `COUNT_UNITS`.

        It is in one count of each list.
        """
        match mechanism:
            case Mechanism.LAPLACE:
                return COUNT_UNITS * self.count_lists
            case Mechanism.GAUSSIAN | Mechanism.NONE:
                return root_up(COUNT_UNITS**2 * self.count_lists)

    def count_noise_units(self, task: Task) -> int:
        """Return the scale of the common noise on counts of reports, in `COUNT_UNITS`.

        Drawn once, whatever the task's division of noise.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE)
        """
        try:
            return noise_scale(task.mechanism, self.count_multiplier, self.count_sensitivity(task.mechanism))
        except ValueError as error:
            raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, f"noise on counts: {error}") from None

    def cell_margin(self, task: Task) -> int:
        """Return by how much a cell's noisy count must pass k, in `COUNT_UNITS`; 0 unless the task is strict.

        Noise reaches it with probability at most the task's `small_cell_delta`, so a cell of fewer than k
        reports is shown with no more. See `beyond_bits`: both helpers come to the same number.
        """
        delta = measurement_of(task).small_cell_delta
        if delta is None:
            return 0
        numerator, denominator = delta.as_integer_ratio()
        # 2^bits is more than 1 / delta, found in integers: floats may differ between two machines.
        bits = (denominator // numerator).bit_length()
        return beyond_bits(task.mechanism, self.count_noise_units(task), bits)


def count_charge(task: Task, noise_multiplier: float, *, rounds: int = 1, delta: float = 0.0) -> Charge:
    """Return the charge of noisy counts of reports: both helpers draw the same noise, once."""
    return Charge(
        mechanism=task.mechanism,
        noise_multiplier=noise_multiplier if task.mechanism is not Mechanism.NONE else 0.0,
        sampling_rate=1.0,
        rounds=rounds,
        # Both helpers see the keys anyway: this noise hides them from the ad server alone.
        is_common=True,
        delta=delta,
        reports=task.reports_per_user,
    )
