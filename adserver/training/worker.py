"""The thread that runs jobs.

`adserver serve` starts one; several, also on several machines, may share a database on PostgreSQL.

It takes a job, keeps its lease while `adserver.training.runner` runs it, and records how it ended
(`adserver.training.job_outcome`). Between jobs it tells both helpers of those that are over, so that they
give back unused budget.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from adserver.peers.pair import HelperPair, JobHelper
from adserver.peers.retrying import Backoff
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import JobEvent
from adserver.records.local_plan import LocalPlan
from adserver.records.training_plan import TrainingPlan
from adserver.store.database import Clock, database_clock
from adserver.store.job_files import JobFiles
from adserver.store.jobs import JobStore
from adserver.store.leases import JobLeases
from adserver.store.rounds import RoundStore
from adserver.training.job_outcome import HELPER_UNAVAILABLE, outcome_of, outcome_of_done
from maskedlark.errors import HelperUnavailable, JobRefused, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.observability.tracing import span
from maskedlark.randomness import system_randomness
from maskedlark.runtime.database import is_away
from maskedlark.runtime.periodic import watching

if TYPE_CHECKING:
    from adserver.training.federated.run import FederatedRun
    from adserver.training.runner import JobRun

_LOG = logging.getLogger(__name__)

_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 60.0
_AWAY_AGAIN_S: Final = 5.0
_REFUSED_AGAIN_S: Final = 600.0

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
        monotonic: Callable[[], float] = monotonic,
    ) -> None:
        """Create a worker that is not started yet.

        Args:
            engine: The store, with its tables.
            helpers: By role.
            data_dir: Where curves are drawn, and on SQLite the files of jobs are.
            clock: Unix seconds.
            backoff: How long to wait for a helper that is down.
            lease_s: How long after this worker's death another one may take its job.
            poll_s: How often to look for new jobs, and for the cancellation of the one that runs.
            monotonic: Seconds on a clock that is never set back: what the worker's own pauses are measured
                by.
        """
        self._helpers = helpers
        self._data_dir = data_dir
        self._clock = clock
        self._backoff = backoff
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._engine = engine
        self._store = JobStore(engine, clock)
        self._rounds = RoundStore(engine)
        # A name that is new with each start, so that the leases of the process before are not this one's.
        self._leases = JobLeases(engine, database_clock(engine, clock), owner=token_hex(16), lease_s=lease_s)
        self._stopping = Event()
        self._thread: Thread | None = None
        self._rest = _ExponentialBackoff(
            first_s=_FIRST_REST_S, longest_s=_LONGEST_REST_S, monotonic=monotonic
        )
        self._closer = _JobCloser(self._leases, self._rounds, helpers, monotonic)
        self._ended: _Ended | None = None

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

        Whenever the database cannot be had, or the disk is full, the worker rests, each time twice as long,
        before it takes a job again.
        """
        if not self._rest.is_over:
            return False
        try:
            self._let_go()
            job = self._leases.claim()
            if job is not None:
                self._run_job(job)
            self._closer.close_finished(self._stopping.is_set)
        except (SQLAlchemyError, OSError) as error:
            if not is_away(error):
                raise
            _LOG.warning(
                "the database or the disk is unavailable; the job worker retries in %g s: %s",
                self._rest.begin(),
                error,
            )
            return False
        self._rest.end()
        return job is not None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.run_one()
            except Exception:  # noqa: BLE001  one bad moment of the database must not end the worker
                _LOG.exception("the job worker continues after an unexpected error")
            self._stopping.wait(self._poll_s)

    def _run_job(self, job: JobRecord) -> None:
        """Run a claimed job, and record how it ended.

        It is let go of in every case but this thread's own death.

        Raises:
            SQLAlchemyError: the database cannot be had; the job goes on from its last round, here or at
                another worker.
            OSError: the disk is full; the same.
        """
        interrupted = Event()
        waiting = _JobWaits(self._leases, job.job_id)
        with ExitStack() as stack:
            stack.enter_context(self._lease_kept(job.job_id, interrupted))
            pair = stack.enter_context(
                HelperPair.open(self._helpers, self._backoff, interrupted=interrupted, watcher=waiting)
            )
            stack.enter_context(span("job", job_id=job.job_id.hex(), rounds_done=job.rounds_done))
            error = self._run_to_the_end(job, pair)
        event, stop = outcome_of(error) if error else outcome_of_done(job)
        self._ended = _Ended(job_id=job.job_id, event=event, stop=stop)
        self._let_go()
        if error is not None and is_away(error):
            raise error

    def _let_go(self) -> None:
        """Record how the last job ended, unless that is done.

        If the database is away even now, it is tried again before another job.
        """
        ended, self._ended = self._ended, None
        if ended is None:
            return
        try:
            self._leases.let_go(ended.job_id, ended.event, ended.stop)
        except JobRefused as error:
            _LOG.info("%s", error)  # cancelled or taken over: it is in somebody else's hands
        except SQLAlchemyError as error:
            if is_away(error):
                self._ended = ended
            raise

    def _run_to_the_end(self, job: JobRecord, pair: HelperPair) -> Exception | None:
        """Run a job; None if it is done, and what stopped it if not."""
        try:
            self._run_of(job, pair).to_the_end()
        except Exception as error:  # noqa: BLE001  whatever it is, the job must not stay with this worker
            return error
        return None

    def _run_of(self, job: JobRecord, pair: HelperPair) -> "JobRun | FederatedRun":
        """Return a job's run from its checkpoint on; import its modules only on a server that has jobs."""
        common: dict[str, Any] = {
            "folder": JobFiles(self._engine, self._data_dir, job.job_id),
            "pair": pair,
            "leases": self._leases,
            "history": self._store.history(job.job_id),
            "clock": self._clock,
        }
        match job.plan:
            case FederatedPlan() as plan:
                from adserver.training.federated.run import FederatedRun

                return FederatedRun(plan=plan, rounds=self._rounds, randomness=system_randomness, **common)
            case TrainingPlan() as plan:
                from adserver.training.runner import JobRun

                return JobRun(plan=plan, **common)
            case LocalPlan():
                raise AssertionError("a job without helpers is never queued")

    @contextmanager
    def _lease_kept(self, job_id: bytes, interrupted: Event) -> Iterator[None]:
        """Renew a job's lease while the block runs.

        Set `interrupted` when the job is lost or cancelled, or this worker stops.
        """
        renewed_s = self._clock()

        def look() -> bool:
            nonlocal renewed_s
            try:
                is_held = self._leases.is_held(job_id)
                # A third: two renewals may fail before the lease ends and another worker takes the job.
                if is_held and self._clock() > renewed_s + self._lease_s / 3:
                    is_held = self._leases.renew(job_id)
                    renewed_s = self._clock()
                    self._leases.release_abandoned(but=job_id)
            except SQLAlchemyError:
                _LOG.exception("cannot renew the lease of job %s yet", job_id.hex())
                # Until the lease ends nobody else takes the job, so that a short outage of the database stops
                # no round.
                is_held = self._clock() < renewed_s + self._lease_s
            if self._stopping.is_set() or not is_held:
                interrupted.set()
            return interrupted.is_set()

        with watching(look, name="job-lease", every_s=self._poll_s):
            yield


@frozen
class _Ended:
    """A job that this worker still holds and runs no more."""

    job_id: bytes
    event: JobEvent
    stop: Stop | None


class _JobWaits:
    """Shows in the store that a job waits for a helper."""

    def __init__(self, leases: JobLeases, job_id: bytes) -> None:
        self._leases = leases
        self._job_id = job_id

    def helper_down(self, error: HelperUnavailable) -> None:
        self._leases.wait(self._job_id, Stop(reason=HELPER_UNAVAILABLE, cause=str(error)))

    def helpers_back(self) -> None:
        self._leases.go_on(self._job_id)


class _ExponentialBackoff:
    """A pause that is twice as long each time, up to a limit, until things are well again."""

    def __init__(self, *, first_s: float, longest_s: float, monotonic: Callable[[], float]) -> None:
        """Start without a pause; `monotonic` returns seconds."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._monotonic = monotonic
        self._next_s = first_s
        self._until_s = 0.0

    @property
    def is_over(self) -> bool:
        """True while there is no pause."""
        return self._monotonic() >= self._until_s

    def begin(self) -> float:
        """Pause from now on; how long, in seconds. One that has not ended yet is not lengthened."""
        now_s = self._monotonic()
        # Several failures in one pause are one failure.
        if now_s >= self._until_s:
            self._until_s = now_s + self._next_s
            self._next_s = min(2 * self._next_s, self._longest_s)
        return self._until_s - now_s

    def end(self) -> None:
        """Reset after a success: no pause, and the next one is short."""
        self._next_s = self._first_s
        self._until_s = 0.0


class _JobCloser:
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
        self._refused: dict[bytes, _ExponentialBackoff] = {}

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
        # Pauses of jobs that are closed meanwhile, by another worker too, go.
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
            # One helper may have answered a round that the other never saw: what may be spent is the larger.
            self._leases.mark_closed(job.job_id, rounds_charged=max(charged))

    def _close_federated(self, job: JobRecord) -> None:
        """Close a federated job here: helpers hold nothing of it, as each round was charged by itself."""
        self._rounds.end_of_job(job.job_id)
        begun = self._rounds.may_be_charged(job.job_id, job.rounds_done)
        self._leases.mark_closed(job.job_id, rounds_charged=job.rounds_done + begun)

    def _pause(self, seconds: float) -> _ExponentialBackoff:
        return _ExponentialBackoff(first_s=seconds, longest_s=seconds, monotonic=self._monotonic)
