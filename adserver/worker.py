"""The thread that runs jobs: `adserver serve` starts one; several, also on several machines, may share a store and a data folder.

It takes a job, keeps its lease while `adserver.job_runner` runs it, records how it ended, and tells the helpers of jobs that are over.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from adserver.database import Clock
from adserver.helper_pair import HelperPair, JobHelper
from adserver.job_folder import JobFolder
from adserver.job_leases import JobLeases
from adserver.job_privacy import budget_spent_line
from adserver.job_state import JobEvent
from adserver.job_store import JobRecord, JobStore, Stop
from adserver.retrying import Backoff
from maskedlark.errors import HelperUnavailable, InvalidModel, JobReason, JobRefused, MaskedLarkError, ModelReason
from maskedlark.job import JobSpec
from maskedlark.observability.tracing import span
from maskedlark.storage import is_away

_LOG = logging.getLogger(__name__)

HELPER_UNAVAILABLE: Final = "helper_unavailable"
INVALID_TASK: Final = "invalid_task"
INTERNAL_ERROR: Final = "internal_error"
BUDGET_SPENT: Final = "budget_spent"
"""The reason of a job that is done because its budget is: it was submitted with --until-budget."""
_CLOSE_AGAIN_S: Final = 5.0
_HOLDS_NOTHING: Final = (JobReason.UNKNOWN_TASK, JobReason.UNKNOWN_DATASET)
_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 60.0

JOB_PATIENCE: Final = Backoff(give_up_after_s=7 * 86_400.0)
"""A job waits a week for a helper before it fails; it can be resumed even then."""


class JobWorker:
    """Runs queued jobs one after the other, oldest first."""

    def __init__(
        self,
        engine: Engine,
        helpers: tuple[JobHelper, JobHelper],
        data_dir: Path,
        clock: Clock,
        *,
        backoff: Backoff = JOB_PATIENCE,
        lease_s: float = 6.0,
        poll_s: float = 0.25,
    ) -> None:
        """A worker that is not started yet.

        Args:
            engine: The store, with its tables.
            helpers: By role.
            data_dir: Where job folders are.
            clock: Unix seconds.
            backoff: How long to wait for a helper that is down.
            lease_s: How long after this worker's death another one may take its job.
            poll_s: How often to look for new jobs, and for the cancellation of the one that runs.
        """
        self._helpers = helpers
        self._data_dir = data_dir
        self._clock = clock
        self._backoff = backoff
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._store = JobStore(engine, clock)
        self._leases = JobLeases(engine, clock, owner=token_hex(16), lease_s=lease_s)
        self._stopping = Event()
        self._thread: Thread | None = None
        self._close_again_s = 0.0
        self._rest_s = _FIRST_REST_S
        self._rests_until_s = 0.0

    def start(self) -> None:
        """Run jobs in a thread until `stop`."""
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="job-worker", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let go of the running job, which stays queued where it is, and end the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def run_one(self) -> bool:
        """Run one job until it stops, or tell the helpers of jobs that are over; whether there was a job.

        Whenever the database cannot be had, the worker rests, each time twice as long, before it takes a job again.
        """
        if self._clock() < self._rests_until_s:
            return False
        try:
            job = self._leases.claim()
            if job is not None:
                self._run_job(job)
            self._close_finished()
        except SQLAlchemyError as error:
            if not is_away(error):
                raise
            self._rest(error)
            return False
        return job is not None

    def _rest(self, error: Exception) -> None:
        """Take no job for a while; one that is at hand goes on from its last round, here or at another worker."""
        _LOG.warning("the database cannot be had; the job worker rests for %g s: %s", self._rest_s, error)
        self._rests_until_s = self._clock() + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.run_one()
            except Exception:  # noqa: BLE001  one bad moment of the database must not end the worker
                _LOG.exception("the job worker goes on after an error")
            self._stopping.wait(self._poll_s)

    def _run_job(self, job: JobRecord) -> None:
        """Run a claimed job, and record how it ended. It is let go of in every case but this thread's own death."""
        interrupted = Event()
        waiting = _JobWaits(self._leases, job.job_id)
        with ExitStack() as stack:
            stack.enter_context(self._lease_kept(job.job_id, interrupted))
            pair = stack.enter_context(HelperPair.opened(self._helpers, self._backoff, interrupted=interrupted, watcher=waiting))
            stack.enter_context(span("job", job_id=job.job_id.hex(), rounds_done=job.rounds_done))
            event, stop = self._outcome(job, pair)
        try:
            self._leases.let_go(job.job_id, event, stop)  # if the database is away even now, the lease ends by itself
        except JobRefused as error:
            _LOG.info("%s", error)  # cancelled or taken over: it is in somebody else's hands

    def _outcome(self, job: JobRecord, pair: HelperPair) -> tuple[JobEvent, Stop | None]:
        """Run a job to its end, and say what became of it."""
        from adserver.job_runner import JobRun  # torch and matplotlib: seconds, and only for a server that has jobs

        try:
            JobRun(
                plan=job.plan,
                folder=JobFolder(self._data_dir, job.job_id),
                pair=pair,
                leases=self._leases,
                history=self._store.history(job.job_id),
                clock=self._clock,
            ).to_the_end()
        except Exception as error:  # noqa: BLE001  whatever it is, the job must not stay with this worker
            if is_away(error):
                self._rest(error)
            return outcome_of(error)
        self._rest_s = _FIRST_REST_S
        return JobEvent.FINISH, Stop(reason=BUDGET_SPENT, cause=budget_spent_line(job.plan)) if job.plan.is_until_budget else None

    @contextmanager
    def _lease_kept(self, job_id: bytes, interrupted: Event) -> Iterator[None]:
        """Renew a job's lease while the block runs; set `interrupted` when the job is lost or cancelled, or this worker stops."""
        is_over = Event()
        thread = Thread(target=self._keep_lease, args=(job_id, interrupted, is_over), name="job-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _keep_lease(self, job_id: bytes, interrupted: Event, is_over: Event) -> None:
        renewed_s = self._clock()
        while not is_over.wait(self._poll_s):
            try:
                is_held = self._leases.is_held(job_id)
                if is_held and self._clock() > renewed_s + self._lease_s / 3:
                    is_held = self._leases.renew(job_id)
                    renewed_s = self._clock()
                    self._leases.release_abandoned(but=job_id)
            except SQLAlchemyError:
                _LOG.exception("cannot renew the lease of job %s yet", job_id.hex())
                is_held = self._clock() < renewed_s + self._lease_s
            if self._stopping.is_set() or not is_held:
                interrupted.set()
                return

    def _close_finished(self) -> None:
        """Tell both helpers of jobs that are over, so that they give back unused budget; again later if one does not answer."""
        if self._clock() < self._close_again_s:
            return
        for job in self._leases.unclosed():
            first, second = [_closed_at(helper, job.plan.job) for helper in self._helpers]
            if first is None or second is None:
                self._close_again_s = self._clock() + _CLOSE_AGAIN_S
            else:
                self._leases.mark_closed(job.job_id, rounds_charged=max(first, second))


class _JobWaits:
    """Shows in the store that a job waits for a helper."""

    def __init__(self, leases: JobLeases, job_id: bytes) -> None:
        self._leases = leases
        self._job_id = job_id

    def helper_down(self, error: HelperUnavailable) -> None:
        self._leases.wait(self._job_id, Stop(reason=HELPER_UNAVAILABLE, cause=str(error)))

    def helpers_back(self) -> None:
        self._leases.go_on(self._job_id)


def _closed_at(helper: JobHelper, job: JobSpec) -> int | None:
    """How many rounds a helper charged for a job that is closed there; None if it did not say.

    One that knows neither the task nor the dataset was begun anew by its operator, and holds no budget to give back.
    """
    try:
        return helper.close_job(job)
    except MaskedLarkError as error:
        if isinstance(error, JobRefused) and error.reason in _HOLDS_NOTHING:
            return 0
        _LOG.warning("job %s is not closed yet: %s", job.job_id.hex(), error)
        return None


def outcome_of(error: Exception) -> tuple[JobEvent, Stop | None]:
    """What an error makes of a job that ran into it."""
    match error:
        case JobRefused(reason=JobReason.CANCELLED):
            return JobEvent.RELEASE, None
        case _ if is_away(error):
            return JobEvent.RELEASE, None
        case HelperUnavailable():
            event, reason = JobEvent.FAIL, HELPER_UNAVAILABLE
        case InvalidModel(reason=ModelReason.NOT_FINITE | ModelReason.DIVERGED):
            event, reason = JobEvent.FAIL, error.reason.value
        case JobRefused() | InvalidModel():
            event, reason = JobEvent.REFUSE, error.reason.value
        case MaskedLarkError():
            event, reason = JobEvent.REFUSE, INVALID_TASK
        case _:
            _LOG.error("a job failed", exc_info=error)
            return JobEvent.FAIL, Stop(reason=INTERNAL_ERROR, cause=f"{type(error).__name__}: see the ad server's log")
    return event, Stop(reason=reason, cause=str(error))
