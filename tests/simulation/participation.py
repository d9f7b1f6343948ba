"""Counts in which rounds each record took part, at each helper, whatever crashed, was resumed or sent again.

It stands between a helper and `aggregate`, and looks at which records count in a sum: the masks of all others
are zero. A record's rank names it, for a job has one dataset. With random allocation a record may take part
in one round of each epoch of a job, also in those that were computed and never left.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.round import Evaluated, MaskedSum, SumFunction, aggregate
from maskedlark.reports.helper_pair_key import PairKey

Place = tuple[int, bytes, int, int]
"""A helper's role, a job, an epoch and a record."""


@dataclass(frozen=True, slots=True)
class Participation:
    """What was counted.

    Attributes:
        rounds: In which rounds of an epoch a record took part.
        computed: How often a round of an epoch was computed.
    """

    rounds: dict[Place, set[int]] = field(default_factory=lambda: defaultdict(set))
    computed: list[tuple[int, bytes, int]] = field(default_factory=list)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while the block runs."""
        with patch("helper.releases.rounds.aggregate", self._counting(aggregate)):
            yield

    def violations(self) -> list[str]:
        """Records that took part more than once in an epoch of a job, in words."""
        return [
            f"helper {role} let a record of job {job_id.hex()[:6]} take part in rounds {sorted(indices)} of"
            f" epoch {epoch}"
            for (role, job_id, epoch, _), indices in self.rounds.items()
            if len(indices) > 1
        ]

    def _counting(self, answer: Callable[..., AggregateShare]) -> Callable[..., AggregateShare]:
        def counted(
            *,
            job: JobSpec,
            pair: PairKey,
            round_index: int,
            masked_sum: SumFunction,
            **rest: Any,
        ) -> AggregateShare:
            def noting(evaluated: Evaluated) -> MaskedSum:
                self._note(job, pair._role, round_index, evaluated)
                return masked_sum(evaluated)

            return answer(job=job, pair=pair, round_index=round_index, masked_sum=noting, **rest)

        return counted

    def _note(self, job: JobSpec, role: int, round_index: int, evaluated: Evaluated) -> None:
        if job.epoch_steps is None:
            return
        epoch = round_index // job.epoch_steps
        self.computed.append((role, job.job_id, round_index))
        for rank in np.flatnonzero(evaluated.counts).tolist():
            self.rounds[role, job.job_id, epoch, rank].add(round_index)
