"""Tells both helpers of jobs that are over, so that they give back unused budget.

`adserver.training.worker` asks for it between jobs.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from adserver.peers.pair import JobHelper
from adserver.records.job_record import JobRecord
from adserver.records.training_plan import TrainingPlan
from adserver.store.leases import JobLeases
from adserver.store.rounds import RoundStore
from adserver.training.exponential_backoff import ExponentialBackoff
from maskedlark.errors import HelperUnavailable, MaskedLarkError

_LOG = logging.getLogger(__name__)

_AWAY_AGAIN_S: Final = 5.0
_REFUSED_AGAIN_S: Final = 600.0


class JobCloser:
    """Closes jobs that are over, each at both helpers, and remembers which helper not to ask again soon."""

    def __init__(
        self,
        leases: JobLeases,
        rounds: RoundStore,
        helpers: Sequence[JobHelper],
        monotonic: Callable[[], float],
    ) -> None:
        """Start with no job to close.

        Args:
            leases: Knows which jobs are over, and hears when they are closed.
            rounds: Those of federated jobs.
            helpers: By role.
            monotonic: Seconds on a clock that is never set back.
        """
        self._leases = leases
        self._rounds = rounds
        self._helpers = helpers
        self._monotonic = monotonic
        self._rest = self._pause(_AWAY_AGAIN_S)
        self._refused: dict[bytes, ExponentialBackoff] = {}

    def close_finished(self, is_stopping: Callable[[], bool]) -> None:
        """Tell both helpers of all jobs that are over; again later if one does not answer."""
        if not self._rest.is_over:
            return
        to_close, away = self._leases.to_close(), set[int]()
        for job in to_close:
            refused = self._refused.get(job.job_id)
            if is_stopping():
                break
            if refused is None or refused.is_over:
                self._close(job, away)
        if away:
            self._rest.begin()
        still = {job.job_id for job in to_close}
        self._refused = {job_id: rest for job_id, rest in self._refused.items() if job_id in still}

    def _close(self, job: JobRecord, away: set[int]) -> None:
        """Close a job at each helper that lets it, though the other does not.

        What a helper refuses, it is not asked again soon.

        Args:
            job: It is over.
            away: The roles of helpers that did not answer just now: they are not asked, and a helper that
                does not answer is added.
        """
        if not isinstance(job.plan, TrainingPlan):
            self._close_federated(job)
            return
        charged = []
        for role, helper in enumerate(self._helpers):
            if role in away:
                continue
            try:
                charged.append(helper.close_job(job.plan.job))
            except HelperUnavailable as error:
                _LOG.warning("job %s is not closed yet: %s", job.job_id.hex(), error)
                away.add(role)
            except MaskedLarkError as error:
                _LOG.warning("job %s cannot be closed: %s", job.job_id.hex(), error)
                self._refused[job.job_id] = self._pause(_REFUSED_AGAIN_S)
                self._refused[job.job_id].begin()
        if len(charged) == len(self._helpers):
            self._leases.mark_closed(job.job_id, rounds_charged=max(charged))

    def _close_federated(self, job: JobRecord) -> None:
        """Close a federated job here: helpers hold nothing of it, as each round was charged by itself."""
        self._rounds.end_of_job(job.job_id)
        begun = self._rounds.may_be_charged(job.job_id, job.rounds_done)
        self._leases.mark_closed(job.job_id, rounds_charged=job.rounds_done + begun)

    def _pause(self, seconds: float) -> ExponentialBackoff:
        return ExponentialBackoff(first_s=seconds, longest_s=seconds, monotonic=self._monotonic)
