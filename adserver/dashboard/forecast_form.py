"""The form of a budget's page that asks what a job would do to it."""

import math
from collections.abc import Mapping
from typing import Final, Self

from adserver.admin.admin_context import AdminContext
from adserver.budgets.headroom import JobLimits
from adserver.dashboard.typed_number import read_number, read_whole
from adserver.store.datasets import Dataset
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.releases.budget import PlannedJob

_MOST_ROUNDS: Final = 1_000_000
# Fields as their form calls them
_BATCH: Final = "reports in a round"
_NOISE: Final = "noise over the clip norm"


@frozen
class ForecastForm:
    """What was typed.

    Attributes:
        rounds: Of the job.
        batch_size: Expected reports in a round; None: the whole dataset.
        noise_multiplier: Each helper's, over the clip norm; None: the least that fits.
    """

    rounds: int
    batch_size: float | None = None
    noise_multiplier: float | None = None

    @classmethod
    def read(cls, typed: Mapping[str, str]) -> Self | None:
        """Return what was typed; None while the form is empty.

        Raises:
            InvalidTask: a field is no number, or not in its range.
        """
        if not typed.get("rounds"):
            return None
        batch, noise = (
            read_number(called, typed[name]) if typed.get(name) else None
            for name, called in (("batch_size", _BATCH), ("noise_multiplier", _NOISE))
        )
        read = cls(rounds=read_whole("rounds", typed["rounds"]), batch_size=batch, noise_multiplier=noise)
        if not 1 <= read.rounds <= _MOST_ROUNDS:
            raise InvalidTask(f"rounds is {read.rounds}: expected 1 to {_MOST_ROUNDS:,}")
        for name, number in ((_BATCH, batch), (_NOISE, noise)):
            if number is not None and not 0 < number < math.inf:
                raise InvalidTask(f"{name} is {number:g}: expected a number above 0")
        return read

    def job(self, site: AdminContext, dataset: Dataset) -> PlannedJob:
        """Return the job, with the least noise that fits the dataset's budgets unless noise was typed.

        Raises:
            JobRefused(BUDGET_EXHAUSTED, MALFORMED, NOISE_OUT_OF_RANGE): no noise is enough, or there is none.
            InvalidTask: a number is out of its range.
        """
        task = site.tasks.find(dataset.task_id.hex()).bundle.task
        batch = float(dataset.size) if self.batch_size is None else self.batch_size
        # Of a dataset that is too small itself, its own refusal says so
        if self.batch_size is not None and not (
            min(task.min_batch_size, dataset.size) <= batch <= dataset.size
        ):
            raise InvalidTask(
                f"{_BATCH} is {batch:g}: expected at least the task's min_batch_size, "
                f"{task.min_batch_size:,}, and at most the dataset's {dataset.size:,}"
            )
        noise = self.noise_multiplier
        if noise is None:
            room = JobLimits(
                task=task,
                dataset_size=dataset.size,
                already=site.budgets.reservations_of_dataset(dataset),
            )
            noise = room.noise_for(rounds=self.rounds, batch_size=batch)
        return PlannedJob(
            rounds=self.rounds, batch_size=self.batch_size, noise_multiplier=noise, is_allocated=True
        )
