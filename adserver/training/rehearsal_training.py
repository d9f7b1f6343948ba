"""One training of a rehearsal: a job's rounds over reports that are drawn from examples, and its score.

    training = RehearsalTraining(model=encoded, examples=examples, plan=plan, name="epsilon 1", seed=0)
    training.train(count).score.value

Three quarters of the examples train, and the other quarter tests. What the second half of them gained is
continued to the planned number of reports.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adserver.records.training_plan import TrainingPlan
from adserver.training import inference
from adserver.training.eval_set import EvalSet
from adserver.training.plain_training import CHECKS, RATES, train_plainly
from adserver.training.runner import mean_excess
from adserver.training.trainer import Trainer
from maskedlark.errors import InvalidModel
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.weights import quantise
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.correlated import DENOMINATOR
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.release import units_of_each_helper

NO_NOISE: Final = "no noise"
ALONE: Final = "examples alone"
PARTS: Final = 4
"""Each seed tests with the next of so many parts of the examples, and trains with the others."""
STEPS: Final = 100
"""What each training or warm start counts up to."""
OnSteps = Callable[[int], None]
"""Gets how many further steps are done."""
_OnShare = Callable[[float], None]


@frozen
class Score:
    """How a training does on the examples that test.

    Attributes:
        value: Predicted for as many reports as are planned, more is better: area under the ROC curve for a
            binary loss (with heads their mean), accuracy for classes, the negative loss for numbers.
        measured: The same figure as it came out, from the examples that there are.
        loss: The mean loss of an example, as it came out: what noise does to it from one training to the
            next is no trend to continue.
        mean_over_rate: The mean prediction over the share of positives; None but for a binary loss.
    """

    value: float
    measured: float
    loss: float
    mean_over_rate: float | None = None


@frozen
class RehearsalTraining:
    """Everything that a process needs for one training."""

    model: bytes = field(repr=False)
    examples: EvalSet = field(repr=False)
    plan: TrainingPlan
    name: str
    seed: int

    def train(self, count: OnSteps) -> "TrainingOutcome":
        """Train once, with all examples and with half of them, and test."""
        from maskedlark.autodiff.one_thread import one_thread

        with one_thread(), _counting(count, runs=2) as on_run:
            try:
                whole, half = (
                    _run(self, _split_examples(self, share=share), on_run(run))
                    for run, share in enumerate((1.0, 0.5))
                )
            except InvalidModel as error:
                return TrainingOutcome(score=None, refused=str(error))
        size = len(self.examples) * (1 - 1 / PARTS)
        reports = len(self.examples) if self.name == ALONE else self.plan.dataset_size
        score = _extrapolate(whole.score, half.score, max(0.0, 1 - size / reports))
        return replace(whole, score=score, model=b"")

    def warm_start(self, count: OnSteps) -> bytes:
        """Return the model after plain training on the examples, at the rate and moment that do best.

        A quarter of the examples decides that, and does not train.
        """
        from maskedlark.autodiff.one_thread import one_thread

        found = []
        with one_thread(), _counting(count, runs=len(RATES)) as on_run:
            for run, rate in enumerate(RATES):
                optimizer = replace(self.plan.optimizer, learning_rate=rate)
                plain = replace(self, plan=replace(self.plan, optimizer=optimizer))
                try:
                    found.append(_train_alone(plain, _split_examples(plain, share=1.0), on_run(run)))
                except InvalidModel:
                    continue
        best = max(found, key=lambda one: -math.inf if one.score is None else one.score.value, default=None)
        return self.model if best is None else best.model

    def plain_trainings(self, seeds: int) -> "list[RehearsalTraining]":
        """Return the trainings of warm starts: of each seed on what trains there, then on all examples."""
        panels = [_split_examples(replace(self, seed=seed), share=1.0).train for seed in range(seeds)]
        return [replace(self, examples=panel) for panel in (*panels, self.examples)]


@frozen
class TrainingOutcome:
    """What came of one: a score, or why it was refused.

    Attributes:
        score: On the examples that test.
        clipped: The share of gradients that were clipped, in the last tenth of the rounds.
        refused: Why there is no score.
        model: The trained file; of plain training only.
    """

    score: Score | None
    clipped: float | None = None
    refused: str = ""
    model: bytes = field(default=b"", repr=False)


def _extrapolate(whole: Score | None, half: Score | None, further: float) -> Score | None:
    """Continue what the second half of the examples gained.

    Args:
        whole: With n examples.
        half: With n / 2.
        further: 1 - n / N for N examples, as 1 / n falls from n to N by so much of its fall from n / 2 to n.
    """
    if whole is None or half is None:
        return whole
    return replace(whole, value=whole.value + further * (whole.value - half.value))


def _split_examples(training: RehearsalTraining, share: float) -> "_SplitExamples":
    """Return a share of the examples that train, and those that test, of this seed."""
    test, others = _part_rows(training.examples, training.seed)
    random = np.random.default_rng([training.seed, len(training.examples)])
    others = random.permutation(others)
    train = training.examples.take(others[: round(share * len(others))])
    return _SplitExamples(train, training.examples.take(test), random)


def choose_test_rows(examples: EvalSet, seed: int) -> NDArray[np.int64]:
    """Return the rows of the examples that each training of a seed is tested with."""
    return _part_rows(examples, seed)[0]


def _part_rows(examples: EvalSet, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that test in a seed, and the others."""
    # After as many seeds as parts each has tested once: the examples are parted anew.
    repeat, part = divmod(seed, PARTS)
    parts = examples.parts(PARTS, np.random.default_rng(repeat))
    test = parts.pop(part)
    return test, np.concatenate(parts)


class _SplitExamples(NamedTuple):
    """The examples of one training, and the draws that follow their choice."""

    train: EvalSet
    test: EvalSet
    random: np.random.Generator


@contextmanager
def _counting(count: OnSteps, *, runs: int) -> Iterator[Callable[[int], _OnShare]]:
    """Yield a function from a run's index to what gets the share of it that is done.

    Shares are passed on as steps, which are `STEPS` at the end, also of runs that end early.
    """
    counted = 0

    def count_to(share: float) -> None:
        nonlocal counted
        further = int(STEPS * share) - counted
        if further > 0:
            counted += further
            count(further)

    try:
        yield lambda run: lambda share: count_to((run + share) / runs)
    finally:
        count_to(1.0)


def _run(training: RehearsalTraining, parts: _SplitExamples, on_share: _OnShare) -> TrainingOutcome:
    if training.name == ALONE:
        return _train_alone(training, parts, on_share)
    return _TrainingRun(training, parts).run(on_share)


def _train_alone(
    training: RehearsalTraining, parts: _SplitExamples, on_share: _OnShare = lambda _: None
) -> TrainingOutcome:
    """Train plainly on the examples, at the plan's learning rate, to the moment that tests best.

    Each half of the examples that test is scored at the moment that is best by the other half: scored by
    those that choose it, the best of ten moments looks better than it is. The model is that of the moment
    that is best by all of them.

    Raises:
        InvalidModel: weights that no job could begin with.
    """
    loss, best, at_best = training.plan.job.loss, None, b""
    model = _parse(training)
    rate = training.plan.optimizer.learning_rate
    one, other = _halves(parts.test, loss, training.seed)
    moments = list[tuple[Score, Score]]()
    for epochs, weights in train_plainly(model, loss, rate, parts.train, parts.random):
        # Raises where a first round could not send them: a job would refuse such a start.
        for value in weights:
            quantise(value)
        if not epochs:  # nothing is trained yet
            continue
        encoded = replace_parameters(training.model, model, weights)
        found = score_model(encoded, parts.test, loss)
        moments.append((score_model(encoded, one, loss), score_model(encoded, other, loss)))
        on_share(min(1.0, len(moments) / CHECKS))
        if best is None or found.value > best.value:
            best, at_best = found, encoded
    if not moments:
        return TrainingOutcome(score=None, model=at_best)
    by_one, by_other = (max(moments, key=lambda pair: pair[half].value) for half in (0, 1))
    return TrainingOutcome(score=_average(by_other[0], by_one[1]), model=at_best)


def _halves(test: EvalSet, loss: TrainedLoss, seed: int) -> tuple[EvalSet, EvalSet]:
    """Return two halves with all labels in each; twice all where there are none, as of one example."""
    one, other = (test.take(rows) for rows in test.parts(2, np.random.default_rng(seed)))
    labels = len(np.unique(test.labels))
    if loss not in (Loss.MSE, Loss.POISSON) and any(
        len(np.unique(half.labels)) < labels for half in (one, other)
    ):
        return test, test
    return one, other


def _average(one: Score, other: Score) -> Score:
    rates = [score.mean_over_rate for score in (one, other) if score.mean_over_rate is not None]
    return Score(
        value=(one.value + other.value) / 2,
        measured=(one.measured + other.measured) / 2,
        loss=(one.loss + other.loss) / 2,
        mean_over_rate=sum(rates) / len(rates) if rates else None,
    )


def _parse(training: RehearsalTraining) -> Model:
    plan = training.plan
    return parse(training.model, num_features=plan.task.num_features, trained=plan.job.trained)


class _TrainingRun:
    """One training over reports that are drawn from examples, and its test on others."""

    def __init__(self, training: RehearsalTraining, parts: _SplitExamples) -> None:
        from maskedlark.autodiff.clipped_sums import ClippedSums

        self._encoded, self._plan, self._name = training.model, training.plan, training.name
        self._loss = training.plan.job.loss
        self._train, self._test, self._random = parts
        self._noise = seeded(training.seed, f"rehearsal {training.name}")
        self._model = _parse(training)
        self._sums = ClippedSums(self._model, self._loss)
        self._trainer = Trainer(model=self._model, plan=self._plan)
        self._before: list[NDArray[np.float64]] = []

    def run(self, on_share: _OnShare) -> TrainingOutcome:
        """Train to the end, and test."""
        rounds = self._plan.job.rounds
        last, shares = rounds - max(1, rounds // 10), list[float]()
        for times in self._batches():
            shares.append(self._step(times))
            on_share(len(shares) / rounds)
        trained = replace_parameters(self._encoded, self._model, self._trainer.values())
        return TrainingOutcome(
            score=score_model(trained, self._test, self._loss), clipped=float(np.mean(shares[last:]))
        )

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield how often each example is in each round's sample."""
        job, size = self._plan.job, len(self._train)
        # Fake reports are drawn into samples as well, and add nothing to a sum.
        real = round(self._plan.dataset_size * (1 - self._plan.task.fake_report_rate))
        drawn = self._random.integers(0, size, real)  # a dataset of people like the examples
        slots = np.empty(0, np.int64)
        for round_index in range(job.rounds):
            if job.epoch_steps is None:
                chosen = drawn[self._random.random(real) < job.sampling_rate]
            else:
                step = round_index % job.epoch_steps
                # Each record takes part in one round of an epoch, drawn anew for each epoch.
                if step == 0:
                    slots = self._random.integers(0, job.epoch_steps, real)
                chosen = drawn[slots == step]
            yield np.bincount(chosen, minlength=size)

    def _step(self, times: NDArray[np.int64]) -> float:
        """Take one step, and return the share of gradients that were clipped."""
        plan, clip = self._plan, self._trainer.clip()
        weights = [quantise(value).to_float() for value in self._trainer.values()]
        chosen = np.flatnonzero(times)
        summed = self._sums.of(
            weights,
            self._train.features[chosen],
            self._train.labels[chosen],
            clip,
            times[chosen],
        )
        count = int(times.sum())
        vector = summed.vector
        if clip.is_counted:
            unit = math.ldexp(clip.count_units, -clip.frac_bits)
            # As helpers count: +1 for each gradient within the bound, -1 for each other.
            vector = np.append(vector, (2 * summed.within - count) * unit)
        if self._name != NO_NOISE:
            vector = vector + self._both_noises(clip, len(vector))
        mean = vector / plan.denominator
        size = self._model.num_parameters
        self._trainer.step(mean[:size])
        if clip.is_counted:
            self._trainer.follow_quantile(mean_excess(plan, clip, float(mean[size])))
        return 1 - summed.within / max(1, count)

    def _both_noises(self, clip: Clip, count: int) -> NDArray[np.float64]:
        """Draw both helpers' noise of one step, in the units of the gradient."""
        task, job = self._plan.task, self._plan.job
        units = units_of_each_helper(task, job.noise_multiplier, clip.released_sensitivity)
        drawn = [noise_vector(task.mechanism, units, count, self._noise).astype(np.float64) for _ in range(2)]
        now = np.ldexp(sum(drawn), -clip.frac_bits)
        if job.carried is None:
            return np.asarray(now)
        # Correlated noise takes back a part of what it added in the round before.
        before = self._before.pop() if self._before else np.zeros(count)
        self._before.append(now)
        return np.asarray(now - job.carried / DENOMINATOR * before)


def score_model(encoded_model: bytes, examples: EvalSet, loss: TrainedLoss) -> Score:
    """Score a model on examples. With heads it is the mean area under the ROC curve of those that have one.

    Raises:
        InvalidModel: onnxruntime cannot run the model.
    """
    features, labels = examples.features, examples.labels
    found = inference.evaluate(encoded_model, features, labels, loss)
    if isinstance(loss, Heads):
        areas = [one.auc for one in inference.evaluate_heads(encoded_model, features, labels, loss).values()]
        known = [one for one in areas if one is not None]
        value = float(np.mean(known)) if known else -found.loss
        return Score(value=value, measured=value, loss=found.loss, mean_over_rate=found.mean_over_rate)
    return score_evaluation(found)


def score_evaluation(found: inference.Evaluation) -> Score:
    """Return the score of an evaluation: the area, else the accuracy, else minus the loss."""
    value = found.accuracy if found.auc is None else found.auc
    value = -found.loss if value is None else value
    return Score(value=value, measured=value, loss=found.loss, mean_over_rate=found.mean_over_rate)
