"""Steps 6 to 8 of one job.

Ask both helpers, compare and add their answers, step the optimizer, keep a checkpoint; round by round.

What happens in a round, in the order that makes a crash harmless:

    1. weights of round r from checkpoint r         the same bytes however often round r is asked for
    2. both helpers answer round r                  each stores its answer before it sends it, charges once
    3. compare, add, step
    4. figures of r + 1 into the store              replaced if step 5 was not reached and r is run again
    5. checkpoint r + 1 next to checkpoint r        a rename or a commit: the latest counts, round r is over
    6. checkpoint r goes                            of files; as rows, in the same commit

So a process that dies anywhere leaves a job that ends in the same bits as one that was never disturbed. One
that was only stopped, and goes on when another worker has the job, is refused at step 4, or writes a
checkpoint that is there already or no more the latest, or finds its transaction ended.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adserver.peers.pair import HelperPair
from adserver.records.round_figures import RoundFigures, noise_to_signal
from adserver.records.training_plan import TrainingPlan
from adserver.store.database import Clock
from adserver.store.job_files import JobFiles
from adserver.store.leases import JobLeases
from adserver.training.curves import CurveWriter
from adserver.training.eval_set import read_eval_set
from adserver.training.inference import Evaluation, evaluate
from adserver.training.trainer import BestWeights, Checkpoint, Masters, Trainer
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.numbers.fixed_point import decode_signed
from maskedlark.numbers.lengths import l2_norm
from maskedlark.privacy.clip import Clip
from maskedlark.releases.release import AggregateShare, combine
from maskedlark.releases.started_job import StartedJob

Evaluate = Callable[[Masters], Evaluation]


class JobRun:
    """One worker's run of one job, from its checkpoint on."""

    def __init__(
        self,
        *,
        plan: TrainingPlan,
        folder: JobFiles,
        pair: HelperPair,
        leases: JobLeases,
        history: tuple[RoundFigures, ...],
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._pair = pair
        self._leases = leases
        self._clock = clock
        self._encoded_model = folder.model()
        self._model = parse(
            self._encoded_model, num_features=plan.task.num_features, trained=plan.job.trained
        )
        self._evaluate = self._evaluator()
        stored = folder.checkpoint()
        checkpoint = None if stored is None else Checkpoint.decode(stored)
        self._trainer = Trainer(model=self._model, plan=plan, checkpoint=checkpoint)
        self._best = None if checkpoint is None else checkpoint.best
        # A step whose checkpoint was not written is taken again, and its figures come again.
        self._history = tuple(
            figures for figures in history if figures.rounds_done <= self._trainer.rounds_done
        )

    def to_the_end(self) -> None:
        """Run every round that is left.

        Raises:
            HelperUnavailable: a helper stayed away for longer than the backoff allows.
            JobRefused: a helper refused, the helpers disagree, or (CANCELLED) the job is to be let go of.
            InvalidModel: training diverged (DIVERGED), or a helper refused the model.
        """
        with CurveWriter.open(self._folder.path, self._history) as curves:
            untrained = None  # evaluated first: it loads what evaluates, and no helper waits for that
            if not self._history and self._evaluate is not None:
                untrained = self._with_evaluation(RoundFigures(rounds_done=0, finished_at_s=self._clock()))
            _check_started(
                *self._pair.start_job(self._plan.job, self._encoded_model),
                num_parameters=self._model.num_parameters,
            )
            if untrained is not None:
                self._keep(replace(untrained, finished_at_s=self._clock()), curves)
            while self._trainer.rounds_done < self._plan.job.rounds:
                self._keep(self._round(), curves)
                checkpoint = replace(self._trainer.checkpoint(), best=self._best)
                self._folder.write_checkpoint(checkpoint.encode(), rounds_done=checkpoint.rounds_done)

    def _round(self) -> RoundFigures:
        """Run one round up to and including the optimizer's step."""
        plan, job, trainer, size = self._plan, self._plan.job, self._trainer, self._model.num_parameters
        clip = trainer.clip()
        shares = self._pair.run_round(job, trainer.rounds_done, trainer.weights(), job.num_values(size))
        mean = mean_gradient(plan, *shares)
        gradient, within = mean[:size], mean[size:]
        learning_rate = trainer.step(gradient)
        if within.size:
            trainer.follow_quantile(mean_excess(plan, clip, float(within[0])))
        noise = plan.noise_norm(size, clip)
        length = l2_norm(gradient)
        figures = RoundFigures(
            rounds_done=trainer.rounds_done,
            finished_at_s=self._clock(),
            learning_rate=learning_rate,
            gradient_norm=length,
            noise_to_signal=noise_to_signal(length, noise),
        )
        return self._with_evaluation(figures) if self._plan.is_evaluated(trainer.rounds_done) else figures

    def _keep(self, figures: RoundFigures, curves: CurveWriter) -> None:
        self._leases.record(self._plan.job.job_id, figures)
        curves.append(figures)

    def _with_evaluation(self, figures: RoundFigures) -> RoundFigures:
        """Return the figures with loss and accuracy, if there is an evaluation set.

        The weights that did best are kept. The set is the ad server's own, so the choice among weights
        that it has anyway costs no budget.
        """
        if self._evaluate is None:
            return figures
        values = self._trainer.values()
        evaluation = self._evaluate(values)
        figures = evaluation.added_to(figures)
        loss = figures.choosing_loss
        if figures.rounds_done and loss is not None:
            self._best = BestWeights.after(self._best, loss, rounds_done=figures.rounds_done, masters=values)
        return figures

    def _evaluator(self) -> Evaluate | None:
        """Return how to evaluate the weights that `model export` would write, on the job's evaluation set."""
        stored = self._folder.eval_set()
        if stored is None:
            return None
        examples = read_eval_set(stored)

        def on_examples(values: Masters) -> Evaluation:
            encoded = replace_parameters(self._encoded_model, self._model, values)
            return evaluate(encoded, examples.features, examples.labels, self._plan.job.loss)

        return on_examples


def mean_gradient(plan: TrainingPlan, first: AggregateShare, second: AggregateShare) -> NDArray[np.float64]:
    """Return the noisy clipped sum over the fixed denominator, float64 (P,).

    Raises:
        JobRefused(HELPERS_DISAGREE, SUM_OUT_OF_RANGE): no step may be taken.
    """
    total = combine(first, second)
    # Before it is a float: a helper that lies could send any number, and the model would take the step.
    plan.job.check_sum_possible(plan.task, total, records=plan.dataset_size)
    return decode_signed(total, plan.task.frac_bits) / plan.denominator


def mean_excess(plan: TrainingPlan, clip: Clip, within: float) -> float:
    """Return an adaptive job's noised mean of +1 for each gradient within the bound and -1 for each other.

    Gradients of real reports count, and no others.

    Args:
        plan: The job.
        clip: The bound of the round.
        within: The last element of `mean_gradient`.
    """
    # The denominator has fake reports in it, which count nothing.
    return math.ldexp(within, clip.frac_bits) / max(1, clip.count_units) / (1 - plan.task.fake_report_rate)


def _check_started(first: StartedJob, second: StartedJob, *, num_parameters: int) -> None:
    """Refuse helpers whose answers could not be added, before any round is charged.

    Raises:
        JobRefused(HELPERS_DISAGREE)
    """
    if first.numerics_digest != second.numerics_digest:
        raise JobRefused(
            JobReason.HELPERS_DISAGREE,
            "the two helpers compute with different numerics: run the same version on both, and on "
            "the general path processors that add in the same order",
        )
    if first.path != second.path:
        raise JobRefused(
            JobReason.HELPERS_DISAGREE,
            f"the helpers use different gradient paths, {first.path} and {second.path}: run the "
            "same version on both",
        )
    if {first.num_parameters, second.num_parameters} != {num_parameters}:
        raise JobRefused(
            JobReason.HELPERS_DISAGREE,
            f"the helpers count {first.num_parameters} and {second.num_parameters} parameters, but "
            f"the model has {num_parameters}: run the same version everywhere",
        )
