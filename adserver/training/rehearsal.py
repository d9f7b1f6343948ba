"""A job rehearsed in the clear on labelled examples of one's own, before a budget is spent.

    wish = Wish(reports=50_000, epsilons=(0.5, 1.0, 3.0), learning_rates=(0.3, 1.0))
    found = rehearse(submission, task, examples, wish)
    found.best("epsilon 1").value

The job itself is trained in this process: its network, optimizer, schedule, samples, clip and both helpers'
noise, as `plan_job` fixes them for as many reports as are planned. Those reports are drawn with replacement
from three quarters of the examples; the other quarter tests. Examples are fewer than reports, and a model
gains by more of them: each training runs with half of the examples too, and what the other half gained is
continued to the planned number, in proportion to one over the number.

A warm start trains plainly on the examples first, as one may with a panel of one's own, and begins the job at
those weights.

Nothing of it concerns the people who will report, so it costs no budget. What a helper would check of the
real dataset, such as its least batch, is not checked.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import field, replace
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adserver.records.dataset_state import DatasetState
from adserver.records.submissions import Submission
from adserver.records.training_plan import TrainingPlan
from adserver.store.datasets import Dataset
from adserver.training import inference
from adserver.training.eval_set import EvalSet
from adserver.training.inference import OF_TWO_CLASSES
from adserver.training.merged_parameters import separate_parameters
from adserver.training.runner import mean_excess
from adserver.training.submission import plan_job
from adserver.training.trainer import Trainer
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss, trained_loss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.weights import quantise
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.correlated import DENOMINATOR
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.job import charge
from maskedlark.releases.release import units_of_each_helper
from maskedlark.reports.task import Task

_PARTS: Final = 4
"""Each seed tests with the next of so many parts of the examples, and trains with the others."""
_LEAST_EXAMPLES: Final = 40
_HOPELESS: Final = 0.02
"""A learning rate whose first score is worse than the best by more than this is not repeated."""
_PLAIN_RATES: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates of plain training on the examples alone: a job's may be in units of its clip bound."""
_CHECKS: Final = 20
"""How often training on the examples alone looks whether it is at its best."""

_RunAll = Callable[..., Iterable[Any]]
OnProgress = Callable[[int, int], None]
"""Gets the trainings that are done, and all there are."""


@frozen
class Wish:
    """What to rehearse.

    Attributes:
        reports: How many reports the dataset is planned to have, fake ones included.
        epsilons: The job's, one after the other; each decides its noise.
        learning_rates: Each is tried.
        seeds: How often each training is repeated: another split, dataset, sample and noise.
        workers: Processes to train in. The result does not depend on it.
        is_warm: Whether each job is also begun at weights that were trained on the examples.
    """

    reports: int
    epsilons: tuple[float, ...]
    learning_rates: tuple[float, ...]
    seeds: int = 3
    workers: int = 1
    is_warm: bool = False


@frozen
class Score:
    """How a training does on the examples that test.

    Attributes:
        value: Predicted for as many reports as are planned, more is better: area under the ROC curve for a
            binary loss (with heads their mean), accuracy for classes, the negative loss for numbers.
        measured: The same figure as it came out, from the examples that there are.
        loss: The mean loss of an example, predicted like the value.
        mean_over_rate: The mean prediction over the share of positives; None but for a binary loss.
    """

    value: float
    measured: float
    loss: float
    mean_over_rate: float | None = None


@frozen
class Rehearsed:
    """One setting, and how it did.

    Attributes:
        name: `epsilon 1`, `no noise`, or `examples alone`: plain training on the examples without the job;
            of a job that begins at trained weights, with `, warm start`.
        epsilon: Of the job; None without noise.
        costs: What the accountant charges; None without noise.
        noise_multiplier: As the job would name it.
        learning_rate: As the job would name it; of the examples alone that of plain training.
        scores: One a seed; fewer where the first one was hopeless; none where the job was refused.
        clipped: The share of gradients that were clipped, in the last tenth of the rounds.
        refused: Why there are no scores.
        is_warm: Whether it begins at weights that were trained on the examples.
    """

    name: str
    epsilon: float | None
    costs: Epsilons | None
    noise_multiplier: float
    learning_rate: float
    scores: tuple[Score, ...]
    clipped: float | None = None
    refused: str = ""
    is_warm: bool = False

    @property
    def value(self) -> float:
        """The mean score; -inf without one."""
        return float(np.mean([one.value for one in self.scores])) if self.scores else -math.inf

    @property
    def loss(self) -> float:
        """The mean loss; NaN without a score."""
        return float(np.mean([one.loss for one in self.scores])) if self.scores else math.nan

    @property
    def mean_over_rate(self) -> float | None:
        """The mean over seeds of `Score.mean_over_rate`."""
        known = [one.mean_over_rate for one in self.scores if one.mean_over_rate is not None]
        return float(np.mean(known)) if known else None

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; NaN for fewer than two."""
        values = [one.value for one in self.scores]
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@frozen
class Rehearsal:
    """All settings, in the order in which they were asked for.

    Attributes:
        metric: What `Score.value` is: roc_auc, accuracy or negative_loss.
        settings: Of the job at each epsilon, without noise, and of the examples alone.
        warm_model: The model with weights that were trained on all examples, if a warm start was asked for.
    """

    metric: str
    settings: tuple[Rehearsed, ...]
    warm_model: bytes | None = field(default=None, repr=False)

    def best(self, name: str) -> Rehearsed:
        """Return the setting of a name whose mean score is the highest."""
        return max((one for one in self.settings if one.name == name), key=lambda one: one.value)

    def names(self) -> list[str]:
        """Return the names of the settings, each once."""
        return list(dict.fromkeys(one.name for one in self.settings))


NO_NOISE: Final = "no noise"
ALONE: Final = "examples alone"
WARM: Final = ", warm start"


@frozen
class _Row:
    """One setting to train at: `plan` is None where the job is refused."""

    name: str
    epsilon: float | None
    learning_rate: float
    plan: TrainingPlan | None
    refused: str = ""
    is_warm: bool = False

    @property
    def shown(self) -> str:
        """The name that people see."""
        return self.name + (WARM if self.is_warm else "")


@frozen
class _Training:
    """Everything that a process needs for one training."""

    model: bytes = field(repr=False)
    examples: EvalSet = field(repr=False)
    plan: TrainingPlan
    name: str
    seed: int


@frozen
class _Trained:
    score: Score | None
    clipped: float | None = None
    refused: str = ""
    model: bytes = field(default=b"", repr=False)


def rehearse(
    submission: Submission,
    task: Task,
    examples: EvalSet,
    wish: Wish,
    progress: OnProgress = lambda _done, _all: None,
) -> Rehearsal:
    """Train the job at each epsilon and learning rate, without noise, and plainly on the examples alone.

    Guarantees: equal arguments give equal results on one kind of machine, whatever `workers` is; no helper
        is asked, and no budget spent.

    Args:
        submission: The job; the wish's epsilons and learning rates replace its own.
        task: The job's task, whose budgets bound the epsilons.
        examples: Labelled, of the model's width.
        wish: What to rehearse.
        progress: See `OnProgress`.

    Raises:
        InvalidModel, JobRefused: model, loss, examples and task do not fit each other.
        InvalidTask: too few examples, or nothing to try.
    """
    submission = replace(submission, model=separate_parameters(submission.model))
    model, loss = parse(submission.model, num_features=task.num_features), trained_loss(submission.loss)
    examples.check_fits(model, loss)
    _check(wish, task, loss, examples)
    rows = _rows(submission, task, wish)
    found: dict[int, list[_Trained]] = {place: [] for place, row in enumerate(rows) if row.plan is not None}
    done, total = 0, len(found) * wish.seeds
    with ExitStack() as stack:
        run_all: _RunAll = map  # one worker is this process
        if wish.workers > 1:
            pool = ProcessPoolExecutor(wish.workers, mp_context=get_context("spawn"))
            run_all = stack.enter_context(pool).map
        starts = _warm_starts(submission, examples, rows, wish, run_all)
        for seeds in (range(1), range(1, wish.seeds)):
            places = _promising(rows, found)
            jobs = [(place, seed) for place in places for seed in seeds]
            total = done + len(jobs) + (0 if seeds.start else len(places) * (wish.seeds - 1))
            trainings = [
                _training(submission, examples, rows[place], seed, starts[seed]) for place, seed in jobs
            ]
            for (place, _), trained in zip(jobs, run_all(_train, trainings), strict=True):
                found[place].append(trained)
                done += 1
                progress(done, total)
    settings = tuple(_rehearsed(row, found.get(place, [])) for place, row in enumerate(rows))
    return Rehearsal(
        metric=_metric(loss),
        settings=settings,
        warm_model=starts[wish.seeds] if wish.is_warm else None,
    )


def _check(wish: Wish, task: Task, loss: TrainedLoss, examples: EvalSet) -> None:
    if len(examples) < _LEAST_EXAMPLES:
        raise InvalidTask(
            f"a rehearsal needs at least {_LEAST_EXAMPLES} labelled examples, and there are {len(examples)}"
        )
    if loss in OF_TWO_CLASSES:
        fewest = min(int((examples.labels == label).sum()) for label in (0, 1))
        if fewest < _PARTS:
            raise InvalidTask(
                f"a rehearsal needs at least {_PARTS} examples of each label, and of one there are {fewest}"
            )
    if not wish.learning_rates or min(wish.seeds, wish.workers, wish.reports) < 1:
        raise InvalidTask("a rehearsal needs at least one learning rate, seed, process and report")
    if task.mechanism is not Mechanism.NONE and not wish.epsilons:
        raise InvalidTask("the task adds noise: give at least one epsilon to rehearse")
    if find_spec("torch") is None:
        raise InvalidTask("a rehearsal needs torch: pip install 'masked-lark[rehearse]'")


def _rows(submission: Submission, task: Task, wish: Wish) -> list[_Row]:
    """Return what is to be trained; without noise and on the examples alone each rate once."""
    epsilons = wish.epsilons if task.mechanism is not Mechanism.NONE else ()
    jobs: list[tuple[str, float | None]] = [(f"epsilon {one:g}", one) for one in epsilons]
    jobs.append((NO_NOISE, None))
    rows = []
    starts = [(name, epsilon, is_warm) for is_warm in (False, wish.is_warm) for name, epsilon in jobs]
    for name, epsilon, is_warm in dict.fromkeys([*starts, (ALONE, None, False)]):
        asked = min(epsilons) if epsilon is None and epsilons else epsilon
        for rate in _PLAIN_RATES if name == ALONE else wish.learning_rates:
            plan: TrainingPlan | None
            try:
                plan, refused = _plan(submission, task, wish.reports, rate, asked), ""
            except (InvalidTask, JobRefused) as error:
                plan, refused = None, str(error)
            rows.append(
                _Row(
                    name=name,
                    epsilon=epsilon,
                    learning_rate=rate,
                    plan=plan,
                    refused=refused,
                    is_warm=is_warm,
                )
            )
    return rows


def _plan(
    submission: Submission, task: Task, reports: int, rate: float, epsilon: float | None
) -> TrainingPlan:
    """Plan the job over a dataset of as many reports as are planned, on which nothing is spent."""
    dataset = Dataset(
        handle=bytes(16),
        task_id=task.task_id,
        state=DatasetState.COMMITTED,
        created_at=0.0,
        received=reports,
        size=reports,
        view_mismatch=0,
        dataset_id=bytes(32),
        dropped=(Counter(), Counter()),
    )
    optimizer = replace(submission.optimizer, learning_rate=rate)
    asked = replace(
        submission, epsilon=epsilon, noise_multiplier=None, optimizer=optimizer, eval_set=None, dataset=""
    )
    return plan_job(asked, task=task, dataset=dataset, job_id=bytes(16), now_s=0.0)


def _promising(rows: Sequence[_Row], found: dict[int, list[_Trained]]) -> list[int]:
    """Return the places of rows that are worth another training: at first, all that a job can be made of."""
    scores = {place: trained[0].score for place, trained in found.items() if trained}
    if not scores:
        return list(found)
    best: dict[str, float] = {}
    for place, score in scores.items():
        if score is not None:
            best[rows[place].shown] = max(best.get(rows[place].shown, -math.inf), score.value)
    return [
        place
        for place, score in scores.items()
        if score is not None and score.value >= best[rows[place].shown] - _HOPELESS
    ]


def _warm_starts(
    submission: Submission, examples: EvalSet, rows: Sequence[_Row], wish: Wish, run_all: _RunAll
) -> list[bytes]:
    """Return the trained model of each seed, and last that of all examples; untrained ones without a wish."""
    row = next((one for one in rows if one.is_warm and one.plan is not None), None)
    if row is None:
        return [submission.model] * (wish.seeds + 1)
    plain = replace(_training(submission, examples, row, 0, submission.model), name=ALONE)
    return list(run_all(_warmed, _panels(plain, wish.seeds)))


def _training(submission: Submission, examples: EvalSet, row: _Row, seed: int, start: bytes) -> _Training:
    if row.plan is None:
        raise AssertionError("a job that was refused is not trained")
    return _Training(
        model=start if row.is_warm else submission.model,
        examples=examples,
        plan=row.plan,
        name=row.name,
        seed=seed,
    )


def _rehearsed(row: _Row, trained: Sequence[_Trained]) -> Rehearsed:
    is_noisy = row.plan is not None and row.name not in {NO_NOISE, ALONE}
    job = None if row.plan is None else row.plan.job
    costs = None
    if row.plan is not None and job is not None and is_noisy:
        costs = spent([charge(row.plan.task, job, job.rounds)], row.plan.task.delta)
    shares = [one.clipped for one in trained if one.clipped is not None]
    return Rehearsed(
        name=row.shown,
        epsilon=row.epsilon,
        costs=costs,
        noise_multiplier=job.noise_multiplier if job is not None and is_noisy else 0.0,
        learning_rate=row.learning_rate,
        scores=tuple(one.score for one in trained if one.score is not None),
        clipped=float(np.mean(shares)) if shares else None,
        refused=row.refused or next((one.refused for one in trained if one.refused), ""),
        is_warm=row.is_warm,
    )


def _train(training: _Training) -> _Trained:
    """Train once, in a process of its own, and test."""
    from maskedlark.autodiff.one_thread import one_thread

    with one_thread():
        try:
            whole, half = (_Run(training, _split(training, share=share)).run() for share in (1.0, 0.5))
        except InvalidModel as error:
            return _Trained(score=None, refused=str(error))
    size = len(training.examples) * (1 - 1 / _PARTS)
    reports = len(training.examples) if training.name == ALONE else training.plan.dataset_size
    score = _extrapolate(whole.score, half.score, max(0.0, 1 - size / reports))
    return replace(whole, score=score, model=b"")


def _extrapolate(whole: Score | None, half: Score | None, further: float) -> Score | None:
    """Continue what the second half of the examples gained.

    Args:
        whole: With n examples.
        half: With n / 2.
        further: 1 - n / N for N examples, as 1 / n falls from n to N by so much of its fall from n / 2 to n.
    """
    if whole is None or half is None:
        return whole
    return replace(
        whole,
        value=whole.value + further * (whole.value - half.value),
        loss=whole.loss + further * (whole.loss - half.loss),
    )


def _split(training: _Training, share: float) -> "_Parts":
    """Return a share of the examples that train, and those that test, of this seed."""
    repeat, part = divmod(training.seed, _PARTS)
    order = np.random.default_rng(repeat).permutation(len(training.examples))
    order = order[np.argsort(training.examples.labels[order], kind="stable")]  # each part has each label
    parts = [order[start::_PARTS] for start in range(_PARTS)]
    test = _select(training.examples, parts.pop(part))
    random = np.random.default_rng([training.seed, len(training.examples)])
    others = random.permutation(np.concatenate(parts))
    return _Parts(_select(training.examples, others[: round(share * len(others))]), test, random)


class _Parts(NamedTuple):
    """The examples of one training, and the draws that follow their choice."""

    train: EvalSet
    test: EvalSet
    random: np.random.Generator


def _warmed(training: _Training) -> bytes:
    """Return the model after plain training on the examples, at the rate and moment that do best.

    A quarter of the examples decides that, and does not train.
    """
    from maskedlark.autodiff.one_thread import one_thread

    found = []
    with one_thread():
        for rate in _PLAIN_RATES:
            optimizer = replace(training.plan.optimizer, learning_rate=rate)
            plain = replace(training, plan=replace(training.plan, optimizer=optimizer))
            try:
                found.append(_Run(plain, _split(plain, share=1.0)).run())
            except InvalidModel:  # weights that left their range
                continue
    best = max(found, key=lambda one: -math.inf if one.score is None else one.score.value, default=None)
    return training.model if best is None else best.model


def _panels(training: _Training, seeds: int) -> list[_Training]:
    """Return the plain trainings of warm starts: of each seed on what trains there, then on all examples."""
    panels = [_split(replace(training, seed=seed), share=1.0).train for seed in range(seeds)]
    return [replace(training, examples=panel) for panel in (*panels, training.examples)]


class _Run:
    """One training over reports that are drawn from examples, and its test on others."""

    def __init__(self, training: _Training, parts: _Parts) -> None:
        from maskedlark.autodiff.clipped_sums import ClippedSums

        self._encoded, self._plan, self._name = training.model, training.plan, training.name
        self._loss = training.plan.job.loss
        self._train, self._test, self._random = parts
        self._noise = seeded(training.seed, f"rehearsal {training.name}")
        self._model: Model = parse(
            training.model, num_features=self._plan.task.num_features, trained=self._plan.job.trained
        )
        self._sums = ClippedSums(self._model, self._loss)
        self._trainer = Trainer(model=self._model, plan=self._plan)
        self._before: list[NDArray[np.float64]] = []

    def run(self) -> _Trained:
        """Train to the end, or on the examples alone to the best moment, and test."""
        rounds = self._plan.job.rounds
        best, at_best, clipped = None, b"", list[float]()
        for round_index, times in enumerate(self._batches()):
            share = self._step(times)
            if round_index >= rounds - max(1, rounds // 10):
                clipped.append(share)
            is_check = round_index % max(1, rounds // _CHECKS) == 0 or round_index == rounds - 1
            if self._name == ALONE and is_check:
                score = self._score()
                if best is None or score.value > best.value:
                    best, at_best = score, self._model_now()
        if self._name == ALONE:
            return _Trained(score=best, model=at_best)
        return _Trained(score=self._score(), clipped=float(np.mean(clipped)))

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield how often each example is in each round's sample."""
        job, size = self._plan.job, len(self._train)
        if self._name == ALONE:
            for _ in range(job.rounds):
                yield np.ones(size, np.int64)
            return
        real = round(self._plan.dataset_size * (1 - self._plan.task.fake_report_rate))
        drawn = self._random.integers(0, size, real)  # a dataset of people like the examples
        slots = np.empty(0, np.int64)
        for round_index in range(job.rounds):
            if job.epoch_steps is None:
                chosen = drawn[self._random.random(real) < job.sampling_rate]
            else:
                step = round_index % job.epoch_steps
                if step == 0:
                    slots = self._random.integers(0, job.epoch_steps, real)
                chosen = drawn[slots == step]
            yield np.bincount(chosen, minlength=size)

    def _step(self, times: NDArray[np.int64]) -> float:
        """Take one step, and return the share of gradients that were clipped."""
        plan, clip = self._plan, self._trainer.clip()
        is_plain = self._name == ALONE
        weights = [quantise(value).to_float() for value in self._trainer.values()]
        chosen = np.flatnonzero(times)
        summed = self._sums.of(
            weights,
            self._train.features[chosen],
            self._train.labels[chosen],
            replace(clip, bound=math.inf, is_per_layer=False) if is_plain else clip,
            times[chosen],
        )
        count = int(times.sum())
        vector = summed.vector
        if clip.is_counted:
            unit = math.ldexp(clip.count_units, -clip.frac_bits)
            vector = np.append(vector, (2 * summed.within - count) * unit)
        if self._name not in {NO_NOISE, ALONE}:
            vector = vector + self._both_noises(clip, len(vector))
        mean = vector / (max(1, count) if is_plain else plan.denominator)
        size = self._model.num_parameters
        # an adaptive job's step is in units of the bound, which plain training does not have
        self._trainer.step(mean[:size] * (clip.bound if is_plain and clip.is_counted else 1.0))
        if clip.is_counted and not is_plain:
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
        before = self._before.pop() if self._before else np.zeros(count)
        self._before.append(now)
        return np.asarray(now - job.carried / DENOMINATOR * before)

    def _score(self) -> Score:
        return score(self._model_now(), self._test, self._loss)

    def _model_now(self) -> bytes:
        return replace_parameters(self._encoded, self._model, self._trainer.values())


def score(encoded_model: bytes, examples: EvalSet, loss: TrainedLoss) -> Score:
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
    elif found.auc is not None:
        value = found.auc
    else:
        value = -found.loss if found.accuracy is None else found.accuracy
    return Score(value=value, measured=value, loss=found.loss, mean_over_rate=found.mean_over_rate)


def _metric(loss: TrainedLoss) -> str:
    match loss:
        case Heads() | Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return "roc_auc"
        case Loss.CROSS_ENTROPY:
            return "accuracy"
        case Loss.MSE | Loss.POISSON:
            return "negative_loss"


def _select(examples: EvalSet, chosen: NDArray[np.intp]) -> EvalSet:
    return EvalSet(features=examples.features[chosen], labels=examples.labels[chosen])
