"""Jobs: checked and paid for before they run, found again after a restart, closed when they are done."""

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, TypeAlias

from helper.datasets.datasets import Datasets
from helper.datasets.fair_cache import FairCache
from helper.executors.executor import Executor
from helper.gradient.engine import GradientEngine, Interrupt
from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, Reservation, StoredJob, key_of
from helper.ledger.spending import check_fits, cost
from helper.releases.answering import Call
from helper.releases.attempts import Attempts
from helper.releases.correlated_noise import CorrelatedNoise
from helper.releases.noise_cache import CAPACITY_BYTES, NoiseCache
from helper.releases.numerics import numerics_digest
from helper.releases.round_cost import round_cost
from helper.releases.rounds import Computation, RunningJob
from helper.releases.work_quota import WorkQuota
from helper.trust.tasks import Caller, ServedTask, Tasks
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.interrupt import never
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss, check_trained
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import Randomness
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import check_noise_fits_task
from maskedlark.releases.started_job import StartedJob
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.rpc.trust import host_of

# Bytes of any job in memory, more than it takes: so there is also a bound on their number.
_A_JOB: Final = 1 << 20
# Of each operator: its description in the graph and in the plan.
_A_NODE: Final = 1 << 13

EngineFor: TypeAlias = Callable[[Model, TrainedLoss, Clip, int | None], GradientEngine]
"""See `helper.gradient.choose.choose_engine`."""

_LOG: Final = logging.getLogger(__name__)


@frozen
class _JobAtWork:
    """An open job and the task that its caller may use."""

    served: ServedTask
    running: RunningJob

    def answer(self, round_index: int, weights: bytes, call: Call) -> bytes:
        """Return the encoded aggregate share of a round; see `RunningJob.answer`."""
        return self.running.answer(self.served, round_index, weights, call)


class RunningJobs:
    """The jobs of one helper."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        datasets: Datasets,
        executor: Executor,
        ledger: Ledger,
        engine_for: EngineFor,
        randomness: Randomness,
        noise_key: Callable[[bytes], bytes],
        quota: WorkQuota,
        kept_bytes: int,
    ) -> None:
        """Make them.

        Args:
            tasks: What callers may use.
            datasets: What jobs run over.
            executor: Where rounds are computed.
            ledger: Where jobs and answers are kept.
            engine_for: Chooses a job's gradient engine.
            randomness: Of noise.
            noise_key: By a job's digest what the seeds of its noise are sealed under.
            quota: What rounds share while they run.
            kept_bytes: The most that models and engines take between rounds. Past it the ad server that has
                most of them gives up what it used least recently, which is read from the ledger when it is
                asked for again. Noise drawn ahead takes half as much at most.
        """
        self._quota = quota
        self._tasks = tasks
        self._datasets = datasets
        self._executor = executor
        self._ledger = ledger
        self._engine_for = engine_for
        self._noise = NoiseCache(randomness, capacity_bytes=min(CAPACITY_BYTES, kept_bytes // 2))
        self._carried = CorrelatedNoise(noise_key, ledger, randomness)
        self._attempts = Attempts()
        self._lock = Lock()
        self._running: FairCache[ReleaseKey, RunningJob] = FairCache(kept_bytes)

    def start(self, encoded: bytes, onnx: bytes, call: Call) -> StartedJob:
        """Check a job and its model, and reserve the budget of all its rounds.

        Called by the ad server; idempotent.

        Args:
            encoded: A `JobSpec`.
            onnx: Its model.
            call: The waiting caller. If it has gone before the budget is reserved, nothing is reserved.

        Raises:
            InvalidTask: the job is not canonical.
            InvalidModel: the model or its loss is not accepted.
            JobRefused(UNKNOWN_TASK, TASK_REFUSED, TASK_EXPIRED, UNKNOWN_DATASET, MALFORMED,
                OVERFLOW, NOISE_OUT_OF_RANGE, TOO_LARGE, BUDGET_EXHAUSTED, TOO_MANY_JOBS, JOB_CHANGED,
                JOB_CLOSED)
        """
        spec = decode(JobSpec, encoded)
        served = self._tasks.serve(spec.task_id, call.caller)
        with self._quota.reading(host_of(served.task.origin)):
            computation = self._computation(served.task, spec, onnx)
        # Without a lock: if two calls open one id, the ledger's key decides, and both read what it holds.
        if self._ledger.job_state(computation.key) is None:
            self._open(served, onnx, computation, call)
        state = self._state(computation.key)
        if state.spec != spec:
            raise JobRefused(
                JobReason.JOB_CHANGED, "a job of this id was started with another content: take a new id"
            )
        _check_open(state)
        self._keep(computation, served).draw_ahead(served)
        return self._start(served.task, computation, state)

    def check_known(self, job: ReleaseKey, caller: Caller) -> None:
        """Return if the caller may act in a job, before anything is computed for it.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_JOB)
        """
        self._tasks.authorize(job.task_id, caller)
        if self._running_here(job) is None:
            self._state(job)

    def at_work(self, job: ReleaseKey, caller: Caller) -> _JobAtWork:
        """Return an open job, ready to answer; after a restart it is rebuilt from the ledger.

        One that is at work here may have been closed by another process: `RunningJob.answer` finds that out.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_JOB, TASK_REFUSED, JOB_CLOSED)
        """
        served = self._tasks.serve(job.task_id, caller)
        running = self._running_here(job)
        if running is None:
            state = self._state(job)
            _check_open(state)
            model = self._ledger.job_model(job)
            if not model:  # it was closed since its state was read
                raise _refuse_closed()
            with self._quota.reading(host_of(served.task.origin)):
                computation = self._computation(served.task, state.spec, model)
            running = self._keep(computation, served)
        return _JobAtWork(served=served, running=running)

    def close(
        self,
        encoded: bytes,
        caller: Caller,
        interrupt: Interrupt = never,
        actor: Actor = THIS_SERVICE,
    ) -> int:
        """Give back the budget of the rounds that were not run, and drop the stored answers.

        Called by the ad server; idempotent.

        A job that is not known is closed too, for its start may be on its way still: it is refused when it
        arrives, and reserves nothing. A round that is to be charged whoever waits is awaited first, and
        `interrupt` is called meanwhile. `actor` is how the audit log names the caller.

        Returns:
            How many rounds were answered, and stay charged.

        Raises:
            InvalidTask: the job is not canonical.
            JobRefused(UNKNOWN_TASK, UNKNOWN_DATASET, JOB_CHANGED)
        """
        return self._close(decode(JobSpec, encoded), caller, interrupt, actor)

    def close_lost(
        self,
        job: ReleaseKey,
        caller: Caller,
        interrupt: Interrupt = never,
        actor: Actor = THIS_SERVICE,
    ) -> int:
        """Close a job whose content its ad server has lost, as `close` does; idempotent.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_JOB)
        """
        self._tasks.authorize(job.task_id, caller)
        return self._close(self._state(job).spec, caller, interrupt, actor)

    def _close(self, spec: JobSpec, caller: Caller, interrupt: Interrupt, actor: Actor) -> int:
        job = key_of(spec)
        self._tasks.authorize(spec.task_id, caller)
        self._datasets.require(spec.dataset_id, spec.task_id)
        # Rounds that must be charged are awaited, or closing a job would be a way to leave without paying.
        with self._attempts.closing(job, interrupt):
            self._ledger.close_job(spec, actor)
        state = self._ledger.job_state(job)
        if state is None:
            return 0  # its dataset takes no more jobs: it will never be started
        if state.spec != spec:
            raise JobRefused(
                JobReason.JOB_CHANGED, "a job of this id was started with another content: it is not closed"
            )
        # After the ledger, which `RunningJob.answer` asks: a job that is still found here answers nothing
        # more.
        with self._lock:
            self._running.pop(job)
        self._noise.drop(job)
        self._attempts.forget(job)
        answered = state.progress.rounds_answered  # and no more from now on
        _LOG.info("job closed: %d of %d rounds answered", answered, spec.rounds)
        return answered

    def _running_here(self, job: ReleaseKey) -> RunningJob | None:
        with self._lock:
            return self._running.get(job)

    def _state(self, job: ReleaseKey) -> StoredJob:
        state = self._ledger.job_state(job)
        if state is None:
            raise JobRefused(JobReason.UNKNOWN_JOB, "this helper does not know the job: start it first")
        return state

    def _computation(self, task: Task, spec: JobSpec, onnx: bytes) -> Computation:
        model = parse(
            onnx, num_features=task.num_features, limits=self._tasks.model_limits, trained=spec.trained
        )
        # The transcripts of both helpers name this digest: what is computed must be of this very model.
        if model.digest != spec.model_digest:
            raise JobRefused(
                JobReason.MALFORMED, "the ONNX file is not the model that the job's model_digest names"
            )
        num_classes = task.labels.size if task.labels.kind is LabelKind.CLASSES else None
        check_trained(model, spec.loss, num_classes)
        engine = self._engine_for(model, spec.loss, spec.clip(task), num_classes)
        return Computation(spec=spec, model=model, engine=engine, numerics=numerics_digest(engine))

    def _open(self, served: ServedTask, onnx: bytes, computation: Computation, call: Call) -> None:
        """Run every check that a new job must pass, the budget last.

        If the same id is opened meanwhile, that one stands.
        """
        task, spec, model = served.task, computation.spec, computation.model
        self._tasks.check_not_expired(task)
        stored = self._datasets.require(spec.dataset_id, served.task_id)
        # Cheap checks first, the budget last: the accountant may take seconds.
        check_noise_fits_task(task, spec.noise_multiplier, whose="job")
        spec.check_sample_hides(task, records=stored.size)
        _check_path_hides(task, spec, computation.engine)
        spec.check_sums_fit(task, records=stored.size, num_parameters=model.num_parameters)
        evaluated = spec.records_evaluated(task, stored.size)
        cost = round_cost(model, computation.engine, records=evaluated, candidates=task.num_candidates)
        self._tasks.check_affordable(cost, "a round of this job")
        new = Reservation(spec=spec, rounds=spec.rounds)

        def check(before: Sequence[Reservation]) -> None:
            check_fits(task, before, new)
            call.check_awaited()  # last, for the check takes its time

        if self._ledger.open_job(spec, onnx, check, call.actor):
            _LOG.info(
                "job opened: %d rounds over %d records, %d parameters",
                spec.rounds,
                stored.size,
                model.num_parameters,
            )

    def _keep(self, computation: Computation, served: ServedTask) -> RunningJob:
        """Return the job in memory: the one that is there, or else a new one."""
        fresh = RunningJob(
            computation=computation,
            datasets=self._datasets,
            executor=self._executor,
            ledger=self._ledger,
            noise=self._noise,
            carried=self._carried,
            attempts=self._attempts,
            tasks=self._tasks,
            quota=self._quota,
        )
        with self._lock:
            running = self._running.get(computation.key)
            if running is None:
                running, owner = fresh, host_of(served.task.origin)
                self._running.put(computation.key, fresh, num_bytes=_held_bytes(computation), owner=owner)
        return running

    def _start(self, task: Task, computation: Computation, state: StoredJob) -> StartedJob:
        epsilons = cost(task, self._ledger.reservations(computation.spec.dataset_id))
        return StartedJob(
            path=computation.engine.path,
            reason=computation.engine.reason,
            numerics_digest=computation.numerics,
            num_parameters=computation.model.num_parameters,
            epsilon_spent=epsilons.ad_server,
            collusion_epsilon_spent=epsilons.colluding,
            rounds_answered=state.progress.rounds_answered,
        )


def _held_bytes(computation: Computation) -> int:
    """Return the bytes that a job takes between its rounds, by counts."""
    model = computation.model
    arrays = (*model.initial_values, *model.constants.values())
    return (
        _A_JOB
        + _A_NODE * len(model.nodes)
        + sum(one.nbytes for one in arrays)
        + computation.engine.held_bytes
    )


def _check_path_hides(task: Task, spec: JobSpec, engine: GradientEngine) -> None:
    """Refuse to count the secrecy of samples on the general path, and correlated noise there.

    Its float64 values may differ between processors, and its time between records: a graph that is made for
    it can show which records it was evaluated on.
    """
    if engine.path == "general" and spec.is_sample_secret and task.mechanism is not Mechanism.NONE:
        raise JobRefused(
            JobReason.MALFORMED,
            "the model needs the general path, where samples are no secret: the job needs is_sample_public "
            f"(--public-samples), and is charged without sampling ({engine.reason})",
        )
    if engine.path == "general" and spec.carried is not None:
        raise JobRefused(
            JobReason.MALFORMED,
            "the model needs the general path, whose sums may differ from one machine to another: correlated "
            f"noise is for the exact path; submit the job with independent noise ({engine.reason})",
        )


def _check_open(state: StoredJob) -> None:
    if state.progress.is_closed:
        raise _refuse_closed()


def _refuse_closed() -> JobRefused:
    return JobRefused(JobReason.JOB_CLOSED, "the job is closed: start another one")
