"""One job at work: answers its rounds, one at a time.

Each answer is committed before anything of it leaves the helper.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from helper.datasets.datasets import Datasets
from helper.executors.executor import Executor, Gradient, ModelFile
from helper.gradient.engine import GradientEngine, Interrupt
from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, StoredRound, key_of
from helper.ledger.round_state import RoundState
from helper.releases.answering import Call, answer_once
from helper.releases.attempts import Attempts
from helper.releases.correlated_noise import CorrelatedNoise, StepSeed
from helper.releases.noise_cache import NoiseCache, NoiseOrder
from helper.releases.round_cost import round_cost
from helper.releases.work_quota import WorkQuota
from helper.trust.floors import WorkEstimate
from helper.trust.tasks import ServedTask, Tasks
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model import weights as weights_format
from maskedlark.model.graph import Model
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import NoiseSource
from maskedlark.releases.job import JobSpec
from maskedlark.releases.round import aggregate
from maskedlark.rpc.trust import host_of

_INTERRUPTED_EVERY_S: Final = 0.1


@frozen
class Computation:
    """What every round of a job computes with.

    Attributes:
        spec: The job.
        model: Its parsed model.
        engine: Its gradient.
        numerics: The digest of the engine's numerics.
    """

    spec: JobSpec
    model: Model = field(repr=False)
    engine: GradientEngine = field(repr=False)
    numerics: bytes

    @property
    def key(self) -> ReleaseKey:
        """The job's name at this helper."""
        return key_of(self.spec)


@frozen(eq=False)
class RunningJob:
    """The rounds of one open job. Safe to call from many threads; the ledger decides between processes."""

    computation: Computation
    datasets: Datasets
    executor: Executor
    ledger: Ledger
    noise: NoiseCache
    carried: CorrelatedNoise
    attempts: Attempts
    tasks: Tasks
    quota: WorkQuota
    _computing: Lock = field(default_factory=Lock, init=False)

    @property
    def weights_length(self) -> int:
        """The length of a round's encoded weights in bytes.

        In an adaptive job the clip bound stands behind them.
        """
        bound = adaptive_clip.BOUND_BYTES if self.computation.spec.is_clip_adaptive else 0
        return weights_format.length_in_bytes(self.computation.model.parameters) + bound

    def answer(self, served: ServedTask, round_index: int, weights: bytes, call: Call) -> bytes:
        """Return a round's encoded share: computed once, then the same bytes for the same weights.

        Args:
            served: The task.
            round_index: From 0.
            weights: As the ad server encoded them.
            call: The waiting caller, also while another round of the job is computed.

        Guarantees: see `answer_once`; and a round is begun and left uncharged at most `MAX_UNCHARGED` times,
            after which it is computed and charged also if the caller leaves, or closes the job.

        Raises:
            JobRefused(UNKNOWN_JOB, JOB_CLOSED, ROUND_CHANGED, ROUND_CLOSED, ROUND_BEYOND_PLAN,
            ROUND_OUT_OF_ORDER, MALFORMED, TOO_LARGE)
            HelperUnavailable: the caller's share of the memory for rounds is taken.
        """
        spec, interrupt, is_due = self.computation.spec, call.check_awaited, False
        seed: StepSeed | None = None

        def compute() -> bytes:
            nonlocal interrupt, is_due, seed
            interrupt()
            # Estimated for every round: the operator may have lowered the limits since the job was opened.
            cost = self._cost(served)
            self.tasks.check_affordable(cost, "a round of this job")
            with self.quota.taken(host_of(served.task.origin), cost.num_bytes, call.check_awaited):
                # Counted once there is memory for it: a call that is turned away before has measured nothing.
                if not self.attempts.begin(self.computation.key, round_index):
                    interrupt, is_due = call.check_serving, True
                # A new seed for each computation, also of the same round: no two answers may share noise.
                seed = self.carried.new_seed(spec, round_index) if spec.carried is not None else None
                return self._compute(served, round_index, weights, seed, interrupt)

        def commit(encoded: bytes, _: Interrupt) -> bool:
            stored = StoredRound(
                weights_digest=weights_format.digest(weights),
                answer=encoded,
                sealed_seed=seed.sealed if seed is not None else None,
            )
            # Not the function that is given, which looks at the caller: a due round is charged without it.
            interrupt()
            # After the last look at the caller: from here on the round is charged. Its budget was checked as
            # the job was opened.
            is_new = self.ledger.add_round(
                self.computation.key,
                round_index,
                stored,
                call.actor,
                numerics=self.computation.numerics,
            )
            if is_new:
                self.attempts.forget(self.computation.key)
            if is_new and round_index + 1 < spec.rounds:
                self.draw_ahead(served, self._clip(served, weights))
            return is_new

        with self._exclusively(call.check_awaited):
            try:
                return answer_once(
                    call,
                    stored=lambda: self._find_answer(round_index, weights),
                    compute=compute,
                    commit=commit,
                    superseded=lambda: JobRefused(
                        JobReason.ROUND_OUT_OF_ORDER, f"round {round_index} is no longer the next one"
                    ),
                )
            finally:
                if is_due:
                    self.attempts.end(self.computation.key)

    def _cost(self, served: ServedTask) -> WorkEstimate:
        """Return what a round takes, by estimate."""
        spec = self.computation.spec
        size = self.datasets.records(spec.dataset_id, spec.task_id).count
        return round_cost(
            self.computation.model,
            self.computation.engine,
            records=spec.records_evaluated(served.task, size),
            candidates=served.task.num_candidates,
        )

    @contextmanager
    def _exclusively(self, interrupt: Interrupt) -> Iterator[None]:
        """Run the job's rounds one at a time; a waiting round can still be interrupted."""
        while not self._computing.acquire(timeout=_INTERRUPTED_EVERY_S):
            interrupt()
        try:
            yield
        finally:
            self._computing.release()

    def draw_ahead(self, served: ServedTask, clip: Clip | None = None) -> None:
        """Begin to draw the next round's noise in the background.

        That of an adaptive job on the guess that its bound stays; correlated noise is of one
        computation, and is drawn in it.
        """
        spec = self.computation.spec
        if spec.carried is not None:
            return
        count = spec.num_values(self.computation.model.num_parameters)
        order = NoiseOrder(
            mechanism=served.task.mechanism, scale=spec.noise_units(served.task, clip), count=count
        )
        self.noise.prepare(self.computation.key, order, host_of(served.task.origin))

    def _find_answer(self, round_index: int, weights: bytes) -> bytes | None:
        """Return the bytes of an answered round, or None if it is the job's next one."""
        job = self.ledger.job_state(self.computation.key)
        if job is None:
            raise JobRefused(JobReason.UNKNOWN_JOB, "this helper does not know the job: start it first")
        # The weights are compared before the state is refused, so that a closed round still says
        # ROUND_CHANGED.
        is_past = job.progress.state_of(round_index) in (RoundState.CHARGED, RoundState.CLOSED)
        stored = self.ledger.round(self.computation.key, round_index) if is_past else None
        if stored is not None and stored.weights_digest != weights_format.digest(weights):
            raise JobRefused(JobReason.ROUND_CHANGED, f"round {round_index} was answered for other weights")
        job.progress.check_answerable(round_index)
        if stored is None:
            return None
        if stored.answer is None:  # it was closed since its state was read
            raise JobRefused(JobReason.ROUND_CLOSED, f"the answer to round {round_index} is no longer kept")
        return stored.answer

    def _compute(
        self,
        served: ServedTask,
        round_index: int,
        weights: bytes,
        seed: StepSeed | None,
        interrupt: Interrupt,
    ) -> bytes:
        spec, model, engine = self.computation.spec, self.computation.model, self.computation.engine
        clip, encoded_weights = self._clip(served, weights), weights
        if spec.is_clip_adaptive:
            engine, encoded_weights = engine.with_clip(clip), weights[: -adaptive_clip.BOUND_BYTES]
        gradient = Gradient(
            engine=engine,
            weights=weights_format.decode(encoded_weights, model.parameters),
            file=ModelFile(
                read=self._model_file, num_features=served.task.num_features, trained=spec.trained
            ),
            loss=spec.loss,
            clip=clip,
        )
        records = self.datasets.records(spec.dataset_id, spec.task_id)
        share = aggregate(
            task=served.task,
            job=spec,
            pair=served.pair,
            round_index=round_index,
            round_transcript=spec.round_transcript(
                round_index=round_index, weights=weights, numerics=self.computation.numerics
            ),
            records=records.count,
            masked_sum=lambda evaluated: self.executor.masked_sum(gradient, records, evaluated, interrupt),
            num_values=spec.num_values(model.num_parameters),
            noise=self._noise_source(served, round_index, seed, interrupt),
            clip=clip,
        )
        return share.encode()

    def _model_file(self) -> bytes:
        """Return the job's ONNX file, which the ledger keeps while the job is open.

        Raises:
            JobRefused(JOB_CLOSED)
        """
        onnx = self.ledger.job_model(self.computation.key)
        if not onnx:
            raise JobRefused(JobReason.JOB_CLOSED, "the job was closed while its round was computed")
        return onnx

    def _clip(self, served: ServedTask, weights: bytes) -> Clip:
        """Return the bound of a round: the job's, or the one after an adaptive job's weights."""
        spec = self.computation.spec
        bound = (
            adaptive_clip.RoundInput.decode(weights, spec.clip(served.task)).bound
            if spec.is_clip_adaptive
            else None
        )
        return spec.clip(served.task, bound)

    def _noise_source(
        self, served: ServedTask, round_index: int, seed: StepSeed | None, interrupt: Interrupt
    ) -> NoiseSource:
        """Return noise drawn ahead for the job, or the correlated noise of a computation's seed."""
        spec = self.computation.spec

        def draw_independent(mechanism: Mechanism, scale: int, count: int) -> NDArray[np.int64]:
            order = NoiseOrder(mechanism=mechanism, scale=scale, count=count)
            return self.noise.take(self.computation.key, order, interrupt)

        def draw_correlated(mechanism: Mechanism, scale: int, count: int) -> NDArray[np.int64]:
            whole = spec.noise_units(served.task)  # one scale in all rounds
            if seed is None or mechanism is not Mechanism.GAUSSIAN or scale > whole:
                raise AssertionError("correlated noise is Gaussian, of the job's scale")
            return self.carried.of_round(
                spec,
                round_index,
                seed,
                scale=whole,
                count=count,
                interrupt=interrupt,
            )

        return draw_independent if spec.carried is None else draw_correlated
