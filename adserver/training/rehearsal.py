"""A job rehearsed in the clear on labelled examples of one's own, before a budget is spent.

    wish = Wish(reports=50_000, epsilons=(0.5, 1.0, 3.0), learning_rates=(0.3, 1.0))
    found = rehearse(submission, task, examples, wish)
    found.advised("epsilon 1").value

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
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Final, assert_never

import numpy as np

from adserver.records.dataset_state import DatasetState
from adserver.records.scored_loss import scored_loss
from adserver.records.submissions import Submission
from adserver.records.training_plan import TrainingPlan
from adserver.store.datasets import Dataset
from adserver.training.default_network import DefaultNetwork, choose_default, submit_default
from adserver.training.default_optimizer import choose_rate, epsilon_of_report, steps_at, why_no_rule
from adserver.training.eval_set import EvalSet
from adserver.training.inference import ERRORS_OF_99, OF_TWO_CLASSES, Evaluation, area_error
from adserver.training.linear_model import can_fit, cross_fit_linear
from adserver.training.merged_parameters import separate_parameters
from adserver.training.model_file import check_loss_fits
from adserver.training.panel_note import is_noted_trained, note_panel, was_trained_on
from adserver.training.plain_training import RATES
from adserver.training.rehearsal_pool import OnProgress, RehearsalPool
from adserver.training.rehearsal_training import (
    ALONE,
    NO_NOISE,
    PARTS,
    STEPS,
    RehearsalTraining,
    Score,
    TrainingOutcome,
    choose_test_rows,
    score_evaluation,
    score_model,
)
from adserver.training.rehearsed import DEFAULT, METRIC_NAMES, WARM, Rehearsal, Rehearsed
from adserver.training.standardising import standardise_submission
from adserver.training.submission import check_settings, plan_job
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss, trained_loss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task import Task
from maskedlark.terminal.exit_status import how_to_install
from maskedlark.terminal.plural import plural

_LEAST_EXAMPLES: Final = 40
# A learning rate whose first score is worse than the best by more than this is not repeated, if that is more
# than the score's standard error too: about twice the error of a difference over the same examples.
_HOPELESS: Final = 0.02
# An area under the curve, or an accuracy, to say how well examples tell it.
_USUAL_SCORE: Final = 0.75
# What is tried in addition to the rule's rate, if nothing else is named, is so many times lower and higher.
_STEP: Final = 3.0


@frozen
class Wish:
    """What to rehearse.

    Attributes:
        reports: How many reports the dataset is planned to have, fake ones included.
        epsilons: The job's, one after the other; each decides its noise.
        learning_rates: Each is tried. Where the job has no optimizer, so is the rate of the rule at each
            epsilon; if none is given here, with a third of it and three times it.
        seeds: How often each training is repeated: another split, dataset, sample and noise.
        workers: Processes to train in. The result does not depend on it.
        is_warm: Whether each job is also begun at weights that were trained on the examples.
        has_default: Whether the default network is also trained, at each epsilon with the rule's rate and
            clip, if the loss is of one label or of classes.
    """

    reports: int
    epsilons: tuple[float, ...]
    learning_rates: tuple[float, ...]
    seeds: int = 3
    workers: int = 1
    is_warm: bool = False
    has_default: bool = False


@frozen
class _Row:
    """One setting to train at: `plan` is None where the job is refused; `default` is what trains instead."""

    name: str
    epsilon: float | None
    learning_rate: float
    plan: TrainingPlan | None
    refused: str = ""
    is_warm: bool = False
    rule_rate: float | None = None
    rule_rounds: int | None = None
    default: DefaultNetwork | None = None

    @property
    def shown(self) -> str:
        """The name that people see."""
        return self.name + (WARM if self.is_warm else "") + (DEFAULT if self.default else "")


def rehearse(
    submission: Submission,
    task: Task,
    examples: EvalSet,
    wish: Wish,
    progress: OnProgress = lambda _done, _all: None,
    *,
    encoder: Encoder | None = None,
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
        encoder: Of the features, by which a linear model of the examples has a weight for each word.

    Raises:
        InvalidModel, JobRefused: model, loss, examples and task do not fit each other, or each job would be
            refused.
        InvalidTask: too few examples, or nothing to try.
    """
    check_wish(wish, submission, task, examples)
    loss = trained_loss(submission.loss)
    check_loss_fits(submission.model, loss, num_features=task.num_features)
    begun = standardise_submission(submission, examples)
    is_trained = begun.is_trained or is_noted_trained(submission.model)
    # As a submitted model is prepared, so that the same parameters train.
    submission = replace(submission, model=separate_parameters(begun.model))
    model = parse(submission.model, num_features=task.num_features)
    examples.check_fits(model, loss)
    loss = scored_loss(loss, model.output_width)
    _check_labels(loss, examples, seeds=wish.seeds)
    rows = _rows(submission, task, wish, model.num_parameters, is_trained=is_trained)
    if wish.has_default:
        rows += _default_rows(submission, task, wish, examples, encoder=encoder, model=model)
    found: dict[int, list[TrainingOutcome]] = {
        place: [] for place, row in enumerate(rows) if row.plan is not None
    }
    with RehearsalPool(workers=wish.workers, progress=progress) as pool:
        pool.total = STEPS * wish.seeds * len(found)
        starts = _warm_starts(submission, examples, rows, wish, pool)
        # One seed of everything first, then the others of what that one leaves worth it.
        for seeds in (range(1), range(1, wish.seeds)):
            places = _promising(rows, found, loss, examples)
            jobs = [(place, seed) for place in places for seed in seeds]
            pool.total = pool.done + STEPS * (wish.seeds - seeds.start) * len(places)
            trainings = [
                _training(submission, examples, rows[place], seed, starts[seed]) for place, seed in jobs
            ]
            outcomes = pool.run(RehearsalTraining.train, trainings)
            for (place, _), trained in zip(jobs, outcomes, strict=True):
                found[place].append(trained)
    settings = tuple(
        _add_error(_summarize_row(row, found.get(place, [])), loss, examples)
        for place, row in enumerate(rows)
    )
    steps, is_warm = steps_at(submission, 1.0), any(row.is_warm and row.plan is not None for row in rows)
    return Rehearsal(
        metric=_metric(loss),
        told=begun.told,
        settings=settings,
        optimizer=steps[0].kind,
        schedule=steps[1].kind,
        # The start after those of the seeds is trained on all examples, so no seed could test it.
        warm_model=note_panel(starts[wish.seeds], examples) if is_warm else None,
        was_trained_on=was_trained_on(submission.model, examples),
        as_given=_score_given(submission.model, loss, examples, seeds=wish.seeds)
        if begun.is_trained
        else None,
        linear=_score_linear(encoder, loss, examples, outputs=model.output_width, seeds=wish.seeds),
    )


def _score_given(model: bytes, loss: TrainedLoss, examples: EvalSet, *, seeds: int) -> Rehearsed:
    """Return how the weights of a model do as they are, with the examples that test in each seed."""
    parts = (examples.take(choose_test_rows(examples, seed)) for seed in range(seeds))
    scores = [score_model(model, part, loss) for part in parts]
    return Rehearsed.of_scores("the weights as they were given", scores)


def _score_linear(
    encoder: Encoder | None, loss: TrainedLoss, examples: EvalSet, *, outputs: int, seeds: int
) -> Rehearsed | None:
    """Return how a linear model of the examples alone does, each fifth scored by one of the others.

    Each seed scores the examples that test in it, so that jobs are compared with it seed by seed. None for
    heads and losses of numbers, and where it has no room for the outputs.
    """
    if isinstance(loss, Heads) or not _is_of_classes(loss) or not can_fit(encoder, outputs):
        return None
    found = cross_fit_linear(encoder, loss, examples, outputs=outputs)
    scores = list[Score]()
    for rows in (choose_test_rows(examples, seed) for seed in range(seeds)):
        scores.append(score_evaluation(Evaluation.of(found.outputs[rows], examples.labels[rows], found.loss)))
    return Rehearsed.of_scores("a linear model of the examples alone", scores)


def _is_of_classes(loss: TrainedLoss) -> bool:
    return loss in OF_TWO_CLASSES or loss is Loss.CROSS_ENTROPY


def describe_examples(examples: EvalSet, loss: TrainedLoss, *, seeds: int) -> str:
    """Say how well so many seeds tell a score by the examples; empty where no standard error is known of it.

    Each seed tests with another quarter of them.
    """
    positives = int((examples.labels == 1).sum())
    if loss in OF_TWO_CLASSES and positives in {0, len(examples)}:
        return ""
    error = _sampling_error(_USUAL_SCORE, loss, examples, parts=min(seeds, PARTS))
    if error is None:
        return ""
    of_label = f", {positives:,} of them positive," if loss in OF_TWO_CLASSES else ""
    score = f"{METRIC_NAMES[_metric(loss)]} of {_USUAL_SCORE:g}"
    told = (
        f"{len(examples):,} examples{of_label} tell an {score} to ± {ERRORS_OF_99 * error:.2g} (99 %) at best"
    )
    if seeds >= PARTS:
        return told
    return (
        f"{told} by {plural(seeds, 'seed')}, which test with {seeds} of {PARTS} parts of them: {PARTS} seeds "
        "test with all, and tell smaller gains from chance"
    )


def add_own_rate(submission: Submission, others: Sequence[float]) -> tuple[float, ...]:
    """Return the rates to try, each once: a job's own first, if it has one."""
    own = () if submission.optimizer is None else (submission.optimizer.learning_rate,)
    return tuple(dict.fromkeys((*own, *others)))


def check_wish(wish: Wish, submission: Submission, task: Task, examples: EvalSet) -> None:
    """Check all of a rehearsal that does not need its model, which takes long to export.

    Raises:
        InvalidTask, InvalidModel, JobRefused: as `rehearse`.
    """
    examples.check_encoder(task.encoder)
    if submission.is_until_budget:
        raise InvalidTask(
            "a job until its budget has no rounds before it is submitted: give rounds to rehearse"
        )
    if len(examples) < _LEAST_EXAMPLES:
        raise InvalidTask(
            f"a rehearsal needs at least {_LEAST_EXAMPLES} labelled examples, and there are {len(examples)}"
        )
    is_rate_given = bool(wish.learning_rates) or submission.optimizer is None
    if not is_rate_given or min(wish.seeds, wish.workers, wish.reports) < 1:
        raise InvalidTask("a rehearsal needs at least one learning rate, seed, process and report")
    if task.mechanism is not Mechanism.NONE and not wish.epsilons:
        raise InvalidTask("the task adds noise: give at least one epsilon to rehearse")
    epsilon = wish.epsilons[0] if task.mechanism is not Mechanism.NONE else None
    tried = replace(submission, epsilon=epsilon, noise_multiplier=None)
    if wish.learning_rates:  # which need no rule
        optimizer, schedule = steps_at(submission, wish.learning_rates[0])
        tried = replace(tried, optimizer=optimizer, schedule=schedule)
    check_settings(tried, task)
    # Only looked for: torch is loaded in the processes that train.
    if find_spec("torch") is None:
        raise InvalidTask(how_to_install("torch", __name__, needs="a rehearsal"))


def _check_labels(loss: TrainedLoss, examples: EvalSet, *, seeds: int) -> None:
    if loss in OF_TWO_CLASSES:
        fewest = min(int((examples.labels == label).sum()) for label in (0, 1))
        if fewest < PARTS:
            raise InvalidTask(
                f"a rehearsal needs at least {PARTS} examples of each label, and of one there are {fewest}"
            )
        # All examples of a person are in one part
        if any(
            len(np.unique(examples.labels[choose_test_rows(examples, seed)])) < 2 for seed in range(seeds)
        ):
            raise InvalidTask(
                f"a rehearsal tests with each of {PARTS} parts of the people, and in one part all examples "
                f"have one label: label examples of more than {examples.num_people} people"
            )


def _rows(submission: Submission, task: Task, wish: Wish, parameters: int, *, is_trained: bool) -> list[_Row]:
    """Return what is to be trained; without noise and on the examples alone each rate once.

    Raises:
        InvalidTask, JobRefused: each job would be refused.
    """
    epsilons = wish.epsilons if task.mechanism is not Mechanism.NONE else ()
    jobs: list[tuple[str, float | None]] = [(f"epsilon {one:g}", one) for one in epsilons]
    jobs.append((NO_NOISE, None))
    rows = list[_Row]()
    why: InvalidTask | JobRefused = InvalidTask("there is no learning rate to rehearse: give one")
    starts = [(name, epsilon, is_warm) for is_warm in (False, wish.is_warm) for name, epsilon in jobs]
    for name, epsilon, is_warm in dict.fromkeys([*starts, (ALONE, None, False)]):
        # In a task with noise no plan is made without an epsilon; what is trained then leaves the noise out.
        asked = min(epsilons) if epsilon is None and epsilons else epsilon
        rule, job = _rule_rate(submission, task, wish, epsilon, parameters), submission
        if epsilon is None and submission.rounds is None:
            # As at the largest epsilon, with which it is compared
            tried = [row.plan.job.rounds for row in rows if row.plan and row.is_warm == is_warm]
            job = replace(submission, rounds=max(tried, default=None))
        for rate in RATES if name == ALONE else _rates(submission, wish, rule):
            plan: TrainingPlan | None
            try:
                known = is_trained or is_warm
                plan = _plan(job, task, wish.reports, rate, asked, is_trained=known)
                refused = ""
            except (InvalidTask, JobRefused) as error:
                plan, refused, why = None, str(error), error
            rows.append(
                _Row(
                    name=name,
                    epsilon=epsilon,
                    learning_rate=rate,
                    plan=plan,
                    refused=refused,
                    is_warm=is_warm,
                    rule_rate=None if epsilon is None else rule,
                    rule_rounds=plan.job.rounds if plan and submission.rounds is None else None,
                )
            )
    # Once, since a table of refusals says no more.
    if not any(row.plan for row in rows):
        raise why
    return rows


def _default_rows(
    submission: Submission,
    task: Task,
    wish: Wish,
    examples: EvalSet,
    *,
    encoder: Encoder | None,
    model: Model,
) -> list[_Row]:
    """Return the default network's job at each epsilon; none where it is the model, or has no such loss."""
    loss = scored_loss(trained_loss(submission.loss), model.output_width)
    if isinstance(loss, Heads) or not _is_of_classes(loss) or task.mechanism is Mechanism.NONE:
        return []
    of_logits = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if loss in OF_TWO_CLASSES else loss
    rows = list[_Row]()
    for epsilon in wish.epsilons:
        made = choose_default(
            task,
            encoder,
            examples,
            reports=wish.reports,
            epsilon=epsilon,
            outputs=model.output_width,
            loss=of_logits,
        )
        if parse(made.model, num_features=task.num_features).digest == model.digest:
            continue
        rate, job = submit_default(submission, task, made, reports=wish.reports, epsilon=epsilon)
        try:
            plan, refused = _plan(job, task, wish.reports, rate, epsilon), ""
        except (InvalidTask, JobRefused) as error:
            plan, refused = None, str(error)
        rows.append(
            _Row(
                name=f"epsilon {epsilon:g}",
                epsilon=epsilon,
                learning_rate=rate,
                plan=plan,
                refused=refused,
                rule_rate=rate,
                rule_rounds=plan.job.rounds if plan and submission.rounds is None else None,
                default=made,
            )
        )
    return rows


def _rule_rate(
    submission: Submission, task: Task, wish: Wish, epsilon: float | None, parameters: int
) -> float | None:
    """Return the rule's rate at an epsilon, without noise at the largest; None if it has none for the job."""
    if why_no_rule(submission, task):
        return None
    of = max(wish.epsilons) if epsilon is None else epsilon
    of_report = epsilon_of_report(of, task)
    return choose_rate(submission, rows=wish.reports, epsilon=of_report, parameters=parameters)


def _rates(submission: Submission, wish: Wish, rule: float | None) -> tuple[float, ...]:
    """Return the learning rates to try of a job."""
    if submission.optimizer is not None or rule is None:
        return wish.learning_rates
    if wish.learning_rates:
        return tuple(dict.fromkeys((rule, *wish.learning_rates)))
    return float(f"{rule / _STEP:.2g}"), rule, float(f"{rule * _STEP:.2g}")


def _plan(
    submission: Submission,
    task: Task,
    reports: int,
    rate: float,
    epsilon: float | None,
    *,
    is_trained: bool = False,
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
    optimizer, schedule = steps_at(submission, rate)
    asked = replace(
        submission,
        epsilon=epsilon,
        noise_multiplier=None,
        optimizer=optimizer,
        schedule=schedule,
        eval_set=None,
        dataset="",
    )
    return plan_job(asked, task=task, dataset=dataset, job_id=bytes(16), now_s=0.0, is_trained=is_trained)


def _promising(
    rows: Sequence[_Row], found: dict[int, list[TrainingOutcome]], loss: TrainedLoss, examples: EvalSet
) -> list[int]:
    """Return the places of rows that are worth another training: at first, all that a job can be made of.

    The rule's rate always is: it is advised unless all seeds tell another from it.
    """
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
        if score is not None
        and (
            rows[place].learning_rate == rows[place].rule_rate
            or (top := best[rows[place].shown]) - score.value
            <= max(_HOPELESS, _sampling_error(top, loss, examples, parts=1) or 0.0)
        )
    ]


def _warm_starts(
    submission: Submission, examples: EvalSet, rows: Sequence[_Row], wish: Wish, pool: RehearsalPool
) -> list[bytes]:
    """Return the trained model of each seed, and last that of all examples; untrained ones without a wish."""
    row = next((one for one in rows if one.is_warm and one.plan is not None), None)
    if row is None:
        return [submission.model] * (wish.seeds + 1)
    plain = replace(_training(submission, examples, row, 0, submission.model), name=ALONE)
    trainings = plain.plain_trainings(wish.seeds)
    pool.total += STEPS * len(trainings)
    return pool.run(RehearsalTraining.warm_start, trainings)


def _training(
    submission: Submission, examples: EvalSet, row: _Row, seed: int, start: bytes
) -> RehearsalTraining:
    if row.plan is None:
        raise AssertionError("a job that was refused is not trained")
    return RehearsalTraining(
        model=row.default.model if row.default else start if row.is_warm else submission.model,
        examples=examples,
        plan=row.plan,
        name=row.name,
        seed=seed,
    )


def _summarize_row(row: _Row, trained: Sequence[TrainingOutcome]) -> Rehearsed:
    is_noisy = row.plan is not None and row.name not in {NO_NOISE, ALONE}
    job = None if row.plan is None else row.plan.job
    costs = None
    if row.plan is not None and job is not None and is_noisy:
        costs = spent([job.charge(row.plan.task, job.rounds)], row.plan.task.delta)
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
        rule_rate=row.rule_rate,
        rule_rounds=row.rule_rounds,
        default=row.default,
    )


def _add_error(found: Rehearsed, loss: TrainedLoss, examples: EvalSet) -> Rehearsed:
    """Return the setting with the sampling error of its mean score."""
    if not found.scores:
        return found
    parts = min(len(found.scores), PARTS)  # the seeds of one round test with different examples
    return replace(found, sampling_error=_sampling_error(found.value, loss, examples, parts=parts))


def _sampling_error(score: float, loss: TrainedLoss, examples: EvalSet, *, parts: int) -> float | None:
    """Return the standard error of a score over so many parts of the examples; None where there is none."""
    share, value = parts / PARTS, min(1.0, max(0.0, score))
    match loss:
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            positives = float((examples.labels == 1).sum())
            return area_error(value, share * positives, share * (len(examples) - positives))
        case Loss.CROSS_ENTROPY:
            return math.sqrt(value * (1 - value) / (share * len(examples)))
        case Loss.MSE | Loss.POISSON | Heads():
            return None
        case _:
            assert_never(loss)


def _metric(loss: TrainedLoss) -> str:
    match loss:
        case Heads() | Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return "roc_auc"
        case Loss.CROSS_ENTROPY:
            return "accuracy"
        case Loss.MSE | Loss.POISSON:
            return "negative_loss"
