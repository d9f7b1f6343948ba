"""A rehearsal is the job: its plan, samples, noise and steps, without the helpers."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adserver.messages.rehearsal import RehearsalMessage
from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training import plain_training
from adserver.training.default_network import make_default_network
from adserver.training.defaults import Network
from adserver.training.eval_set import EvalSet
from adserver.training.inference import area_error, evaluate_heads, predict
from adserver.training.linear_model import cross_fit_linear
from adserver.training.panel_note import was_trained_on
from adserver.training.plain_training import RATES
from adserver.training.rehearsal import (
    Wish,
    _add_error,
    _plan,
    _promising,
    _Row,
    _rows,
    describe_examples,
    rehearse,
)
from adserver.training.rehearsal_training import (
    ALONE,
    NO_NOISE,
    STEPS,
    RehearsalTraining,
    Score,
    TrainingOutcome,
    _counting,
    _extrapolate,
    _split_examples,
    _train_alone,
    _TrainingRun,
    choose_test_rows,
    score_model,
)
from adserver.training.rehearsed import DEFAULT, WARM, Rehearsal, Rehearsed
from adserver.views.rehearsal import print_rehearsal
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task
from tests.builders import world

WIDTH = 4
WISH = Wish(reports=20_000, epsilons=(0.5, 8.0), learning_rates=(0.001, 0.5), seeds=2)
SUBMISSION = Submission(
    model=dense_network([WIDTH, 1], "relu", seed=1),
    loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
    rounds=30,
    batch_size=2_000.0,
    epsilon=None,
    noise_multiplier=None,
    optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=1.0),
    schedule=Schedule(),
    eval_set=None,
    eval_every=None,
    clip_norm=1.0,
    is_standardised=False,
)


def task_of(**changes: Any) -> Task:
    """A task for two classes with room for an epsilon of 16."""
    settings = {
        "mechanism": "gaussian",
        "epsilon": 16.0,
        "collusion_epsilon": 400.0,
        "delta": 1e-5,
        **changes,
    }
    labels = {"kind": "classes", "size": 2}
    return world(num_features=WIDTH, labels=labels, min_batch_size=20, clip_norm=2.0, **settings).task


def examples(count: int = 800) -> EvalSet:
    """Labels that the first two features decide but for some noise."""
    chance = np.random.default_rng(1)
    features = chance.integers(0, 256, (count, WIDTH)).astype(np.uint8)
    edge = features[:, 0].astype(float) - features[:, 1] + chance.normal(0, 40, count)
    return EvalSet(features=features, labels=(edge > 60).astype(np.int64))


def trained(submission: Submission = SUBMISSION, wish: Wish = WISH, task: Task | None = None) -> Rehearsal:
    return rehearse(submission, task or task_of(), examples(), wish)


@pytest.fixture(scope="module")
def rehearsal() -> Rehearsal:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain_training, "_LEAST_STEPS", 10)
        return trained()


@pytest.fixture
def alone_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take few steps on the examples alone, at whose score the test does not look."""
    monkeypatch.setattr(plain_training, "_LEAST_STEPS", 10)


def test_each_epsilon_no_noise_and_the_examples_alone_are_rows(rehearsal: Rehearsal) -> None:
    assert rehearsal.metric == "roc_auc"
    assert rehearsal.names() == ["epsilon 0.5", "epsilon 8", NO_NOISE, ALONE]
    rates = {
        name: [one.learning_rate for one in rehearsal.settings if one.name == name]
        for name in rehearsal.names()
    }
    assert rates.pop(ALONE) == [*RATES]
    assert all(tried == [0.001, 0.5] for tried in rates.values())


def test_the_error_of_an_area_is_that_of_many_samples_of_as_many_records() -> None:
    chance = np.random.default_rng(1)
    # Exponential scores are those that Hanley and McNeil assume.
    positives, negatives = chance.exponential(2.5, (4_000, 30)), chance.exponential(1, (4_000, 200))
    below = (negatives[:, None, :] < positives[:, :, None]).mean(axis=(1, 2))
    assert area_error(float(below.mean()), 30, 200) == pytest.approx(float(below.std()), rel=0.1)


def test_an_interval_follows_the_examples_that_were_scored_and_the_seeds() -> None:
    """Two seeds that agree on half of 182 positives say little: .721 was promised, and .677 came."""
    labels = np.repeat([0, 1], [1_418, 182])
    panel = EvalSet(features=np.zeros((1_600, 1), np.uint8), labels=labels)

    def interval(*values: float, loss: Loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS) -> Any:
        scores = tuple(Score(value=value, measured=value, loss=0.3) for value in values)
        row = Rehearsed(
            name="epsilon 3",
            epsilon=3.0,
            costs=None,
            noise_multiplier=1.0,
            learning_rate=1.0,
            scores=scores,
        )
        return _add_error(row, loss, panel).interval

    low, high = interval(0.7212, 0.7212)
    assert low < 0.65
    assert high > 0.79
    narrow, wide = interval(*[0.72] * 4), interval(0.68, 0.76, 0.68, 0.76)
    assert low < narrow[0] < 0.72 < narrow[1] < high
    assert wide[0] < narrow[0]
    assert wide[1] > narrow[1]
    assert interval(*[0.89] * 4, loss=Loss.CROSS_ENTROPY) == pytest.approx(
        (0.89 - 2.576 * (0.89 * 0.11 / 1_600) ** 0.5, 0.89 + 2.576 * (0.89 * 0.11 / 1_600) ** 0.5)
    )
    assert interval() is None
    assert interval(-0.3, loss=Loss.MSE) is None


def test_each_setting_is_a_row_of_a_frame_and_of_an_arrow_stream(rehearsal: Rehearsal) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    found = rehearsal.to_pandas()
    assert list(found["name"]) == [one.name for one in rehearsal.settings]
    assert (found["low"] < found["value"]).all()
    assert (found["value"] < found["high"]).all()
    assert pyarrow.table(rehearsal).num_rows == len(found)
    assert "(99 %: " in repr(rehearsal)


@pytest.mark.usefixtures("alone_briefly")
def test_an_untrained_model_is_standardised_by_the_examples_and_another_is_not(rehearsal: Rehearsal) -> None:
    assert not rehearsal.told
    found = trained(
        replace(SUBMISSION, is_standardised=True),
        replace(WISH, epsilons=(8.0,), learning_rates=(0.5,), seeds=1),
    )
    assert found.remarks()[0].startswith("the network is untrained")


@pytest.mark.usefixtures("alone_briefly")
def test_what_more_examples_gain_is_continued_to_the_planned_reports() -> None:
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(0.5,), seeds=1)
    job = replace(SUBMISSION, batch_size=None)
    few, many = (
        trained(job, replace(wish, reports=reports)).best(NO_NOISE).scores[0] for reports in (600, 100_000)
    )
    assert few.value == few.measured  # of 800 examples, 600 train
    gained = many.value - many.measured
    training = RehearsalTraining(
        model=job.model,
        examples=examples(),
        plan=_plan(job, task_of(), 100_000, 0.5, 8.0),
        name=NO_NOISE,
        seed=0,
    )
    half = _TrainingRun(training, _split_examples(training, share=0.5)).run(lambda _: None)
    assert half.score is not None
    assert gained == pytest.approx((many.measured - half.score.measured) * (1 - 600 / 100_000))


def test_a_larger_epsilon_costs_more_and_has_less_noise(rehearsal: Rehearsal) -> None:
    small, large = rehearsal.best("epsilon 0.5"), rehearsal.best("epsilon 8")
    assert small.costs is not None
    assert large.costs is not None
    assert small.costs.ad_server <= 0.5 < large.costs.ad_server <= 8.0
    assert small.noise_multiplier > large.noise_multiplier > 0
    assert rehearsal.best(NO_NOISE).costs is None


def test_the_better_rate_is_the_best_and_a_hopeless_one_is_tried_once(rehearsal: Rehearsal) -> None:
    best = rehearsal.best(NO_NOISE)
    assert best.learning_rate == 0.5
    assert best.value > 0.9
    assert len(best.scores) == WISH.seeds
    poor = next(one for one in rehearsal.settings if one.name == NO_NOISE and one.learning_rate == 0.001)
    assert len(poor.scores) == 1
    assert best.clipped is not None
    assert 0 <= best.clipped <= 1


@pytest.fixture(scope="module")
def warm() -> Rehearsal:
    wish = replace(WISH, epsilons=(0.05, 8.0), learning_rates=(0.02,), seeds=2, is_warm=True)
    with pytest.MonkeyPatch.context() as patched:
        for module in ("rehearsal", "rehearsal_training"):
            patched.setattr(f"adserver.training.{module}.RATES", (0.03, 0.1))
        patched.setattr(plain_training, "_LEAST_STEPS", 100)
        return trained(replace(SUBMISSION, rounds=10, batch_size=None), wish)


def test_where_noise_and_rounds_leave_little_a_warm_start_pays(warm: Rehearsal) -> None:
    assert warm.names() == [
        "epsilon 0.05", "epsilon 8", NO_NOISE, f"epsilon 0.05{WARM}", f"epsilon 8{WARM}",
        f"{NO_NOISE}{WARM}", ALONE,
    ]  # fmt: skip
    started, cold = warm.best(f"epsilon 8{WARM}"), warm.best("epsilon 8")
    assert started.value > cold.value + 0.05
    assert (started.is_warm, cold.is_warm) == (True, False)
    assert started.costs == cold.costs


def test_the_warm_model_is_trained_on_the_examples_alone(warm: Rehearsal, rehearsal: Rehearsal) -> None:
    assert warm.warm_model is not None
    assert warm.as_given is rehearsal.as_given is None  # fresh weights
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(0.02,), seeds=1)
    knowing = rehearse(replace(SUBMISSION, model=warm.warm_model), task_of(), examples(), wish)
    assert knowing.as_given is not None
    assert knowing.as_given.value == pytest.approx(warm.best(ALONE).value, abs=0.05)
    before, after = (
        score_model(model, examples(2_000), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS).value
        for model in (SUBMISSION.model, warm.warm_model)
    )
    assert after > max(0.95, before)
    assert after == pytest.approx(warm.best(ALONE).value, abs=0.02)
    assert rehearsal.warm_model is None


def test_the_warm_model_names_the_examples_that_trained_it(warm: Rehearsal) -> None:
    assert warm.warm_model is not None
    assert was_trained_on(warm.warm_model, examples())
    assert not was_trained_on(warm.warm_model, examples().take(np.arange(700)))
    assert not warm.was_trained_on
    told = [one for one in warm.remarks() if one.startswith("the warm model was trained on all examples")]
    assert len(told) == 1
    assert "as --eval-set they make the figures of its job too good" in told[0]
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(0.02,), seeds=1)
    again = trained(replace(SUBMISSION, model=warm.warm_model, rounds=2), wish)
    assert again.remarks()[0].startswith("the model was trained on these examples: all scores are too good")
    assert "eval-set they make" not in " ".join(again.remarks())


def test_the_examples_that_test_do_not_train_a_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of chance cannot be told of examples that were not seen; of seen ones they are at .63."""
    for module in ("rehearsal", "rehearsal_training"):
        monkeypatch.setattr(f"adserver.training.{module}.RATES", (0.1,))
    monkeypatch.setattr(plain_training, "_LEAST_STEPS", 100)
    found = examples(80)
    chance = EvalSet(features=found.features, labels=np.random.default_rng(2).integers(0, 2, 80))
    model = dense_network([WIDTH, 32, 1], "relu", seed=1)  # wide enough to learn by heart
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(1e-6,), seeds=4, is_warm=True)
    guessed = rehearse(replace(SUBMISSION, model=model, rounds=2), task_of(), chance, wish)
    assert abs(np.mean([one.measured for one in guessed.best(f"epsilon 8{WARM}").scores]) - 0.5) < 0.08


@pytest.mark.usefixtures("alone_briefly")
def test_progress_has_its_total_before_anything_is_trained_and_moves_within_a_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adserver.training.rehearsal.RATES", (0.03,))
    told: list[tuple[int, int]] = []
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(0.5,), is_warm=True)
    rehearse(SUBMISSION, task_of(), examples(), wish, lambda *at: told.append(at))
    done = [one for one, _ in told]
    # Two warm jobs, two cold ones and the examples alone with two seeds each, and three warm starts
    assert told[0] == (0, 13 * STEPS)
    assert told[-1] == (13 * STEPS, 13 * STEPS)
    assert done == sorted(done)
    assert any(one % STEPS for one in done)


def test_a_refused_training_counts_as_a_whole_one() -> None:
    counted: list[int] = []
    with suppress(InvalidModel), _counting(counted.append, runs=2) as on_run:
        on_run(0)(0.3)
        on_run(0)(0.302)
        raise InvalidModel(ModelReason.DIVERGED, "weights leave the range")
    assert counted == [15, 85]
    assert sum(counted) == STEPS


def test_the_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adserver.training.rehearsal.RATES", (0.03,))
    job, wish = replace(SUBMISSION, rounds=2), replace(WISH, epsilons=(8.0,), seeds=1)
    told: list[tuple[int, int]] = []
    shared = rehearse(job, task_of(), examples(), replace(wish, workers=2), lambda *at: told.append(at))
    assert shared.settings == trained(job, wish).settings
    total = len(shared.settings) * STEPS
    assert (told[0], told[-1]) == ((0, total), (total, total))


@pytest.mark.usefixtures("alone_briefly")
@pytest.mark.parametrize(
    "changes",
    [
        {"adaptive_clip": AdaptiveClip(quantile=0.9), "clip_norm": None},
        {"is_clip_per_layer": True},
        {"noise": StepNoise.CORRELATED},
        {"is_allocated": False, "batch_size": 1_000.0},
    ],
    ids=["adaptive", "per layer", "correlated", "poisson"],
)
def test_every_kind_of_job_can_be_rehearsed(changes: dict[str, Any]) -> None:
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(0.2,), seeds=1)
    found = trained(replace(SUBMISSION, **changes), wish)
    assert all(one.scores for one in found.settings)
    assert found.best(NO_NOISE).value > 0.85


@pytest.mark.usefixtures("alone_briefly")
def test_noise_that_leaves_nothing_shows() -> None:
    wish = replace(WISH, reports=200, epsilons=(0.02,), learning_rates=(0.5,), seeds=2)
    found = trained(replace(SUBMISSION, batch_size=None), wish)
    assert found.best("epsilon 0.02").value < found.best(NO_NOISE).value - 0.1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reports": 10, "epsilons": (8.0,)}, "min_batch_size"),
        ({"epsilons": (99.0,)}, "at most that"),
    ],
)
def test_a_rehearsal_of_which_each_job_would_be_refused_is_refused_once(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises((InvalidTask, JobRefused), match=why):
        trained(wish=replace(WISH, learning_rates=(0.5,), seeds=1, **changes))


def test_a_loss_that_takes_no_logit_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(InvalidModel, match="use binary_cross_entropy_with_logits on logits"):
        trained(replace(SUBMISSION, loss=Loss.BINARY_CROSS_ENTROPY, is_standardised=True))


@pytest.mark.usefixtures("alone_briefly")
def test_an_epsilon_above_the_tasks_budget_is_a_row_with_the_reason() -> None:
    found = trained(wish=replace(WISH, epsilons=(8.0, 17.0), learning_rates=(0.5,), seeds=1))
    assert "ask for at most that" in found.best("epsilon 17").refused
    assert found.best("epsilon 8").scores
    assert found.best(NO_NOISE).scores


@pytest.mark.usefixtures("alone_briefly")
def test_rare_labels_are_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adserver.training.rehearsal.RATES", (0.03,))
    labels = np.zeros(800, np.int64)
    labels[:4] = 1
    rare = EvalSet(features=examples().features, labels=labels)
    found = rehearse(
        replace(SUBMISSION, rounds=2),
        task_of(),
        rare,
        replace(WISH, epsilons=(8.0,), learning_rates=(0.5,), seeds=4),
    )
    assert all(score.mean_over_rate is not None for one in found.settings for score in one.scores)
    of_one = replace(rare, people=np.maximum(np.arange(800) - 3, 0))
    with pytest.raises(InvalidTask, match="one label: label examples of more than 797 people"):
        rehearse(SUBMISSION, task_of(), of_one, WISH)
    labels[3] = 0
    with pytest.raises(InvalidTask, match="at least 4 examples of each label, and of one there are 3"):
        rehearse(SUBMISSION, task_of(), rare, WISH)


@pytest.mark.usefixtures("alone_briefly")
def test_weights_that_leave_the_range_are_a_row_with_the_reason() -> None:
    model = parse(SUBMISSION.model, num_features=WIDTH)
    huge = tuple(np.full(value.shape, 3e38, np.float32) for value in model.initial_values)
    submission = replace(SUBMISSION, model=replace_parameters(SUBMISSION.model, model, huge))
    found = trained(submission, replace(WISH, epsilons=(8.0,), learning_rates=(1.0,), seeds=1))
    assert "above 2^29" in found.best("epsilon 8").refused


@pytest.mark.parametrize("field", ["epsilons", "learning_rates"])
def test_nothing_to_try_is_refused(field: str) -> None:
    with pytest.raises(InvalidTask, match="at least one"):
        trained(wish=replace(WISH, **dict[str, Any]({field: ()})))


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(InvalidTask, match="at least 40 labelled examples, and there are 39"):
        rehearse(SUBMISSION, task_of(), examples(39), WISH)


def test_heads_score_by_their_mean_area() -> None:
    model = dense_network([WIDTH, 2], "relu", seed=1)
    found = examples()
    labels = found.labels + (found.features[:, 2] > 200) * found.labels
    name = parse(model, num_features=WIDTH).output_name
    heads: list[dict[str, Any]] = [
        {"output": f"{name}[0]", "targets": [0, 1, 1]},
        {"output": f"{name}[1]", "targets": [None, 0, 1]},
    ]
    scored = score_model(model, EvalSet(features=found.features, labels=labels), Heads.of(heads))
    evaluated = evaluate_heads(model, found.features, labels, Heads.of(heads))
    assert scored.value == pytest.approx(np.mean([one.auc for one in evaluated.values()]))
    assert scored.mean_over_rate is None


def test_examples_alone_that_say_nothing_score_a_half_though_their_best_moment_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scored at the moment that is best by the same rows, they reach .551."""
    monkeypatch.setattr(plain_training, "_LEAST_STEPS", 20)
    chance = np.random.default_rng(5)
    noise = EvalSet(
        features=chance.integers(0, 256, (160, WIDTH)).astype(np.uint8), labels=chance.integers(0, 2, 160)
    )
    scores = list[float]()
    for seed in range(24):
        alone = RehearsalTraining(
            model=SUBMISSION.model,
            examples=noise,
            plan=_plan(SUBMISSION, task_of(), 5_000, 0.3, 8.0),
            name=ALONE,
            seed=seed,
        )
        score = _train_alone(alone, _split_examples(alone, share=1.0)).score
        assert score is not None
        scores.append(score.measured)
    assert float(np.mean(scores)) == pytest.approx(0.5, abs=0.03)


def test_a_binary_score_has_the_mean_prediction_over_the_base_rate() -> None:
    found = examples()
    scored = score_model(SUBMISSION.model, found, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    logits = predict(SUBMISSION.model, found.features)[:, 0]
    assert scored.mean_over_rate == pytest.approx((1 / (1 + np.exp(-logits))).mean() / found.labels.mean())


def scored(name: str, values: Iterable[float]) -> Rehearsed:
    """What a job is compared with, with its scores, one a seed."""
    return Rehearsed.of_scores(name, [Score(value=one, measured=one, loss=0.4) for one in values])


def rehearsed(scores: Mapping[float, tuple[float, ...]], rule: float | None = None, **more: Any) -> Rehearsal:
    """A rehearsal at epsilon 1 with the scores of each rate, one a seed."""
    settings = [
        Rehearsed(
            name=name,
            epsilon=epsilon,
            costs=None,
            noise_multiplier=1.0,
            learning_rate=rate,
            scores=tuple(Score(value=value, measured=value, loss=0.4) for value in values),
            rule_rate=rule,
        )
        for name, epsilon in (("epsilon 1", 1.0), (ALONE, None))
        for rate, values in scores.items()
    ]
    return Rehearsal(metric="roc_auc", settings=tuple(settings), **more)


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (0, "epsilon 1: 0.3 is the lowest rate that was tried: try lower, such as 0.1"),
        (1, ""),
        (2, "epsilon 1: 3 is the highest rate that was tried: try higher, such as 9"),
        (None, "epsilon 1: only the rate 0.3 was tried: try 0.1 and 0.9, too"),
    ],
)
def test_a_best_rate_at_the_edge_of_those_tried_says_where_to_go_on(best: int | None, said: str) -> None:
    rates = (0.3,) if best is None else (0.3, 1.0, 3.0)
    found = rehearsed({rate: (0.5 + 0.2 * (place == best),) * 2 for place, rate in enumerate(rates)})
    assert [line for line in found.remarks() if "tried" in line] == ([said] if said else [])
    assert said in repr(found)
    assert f"epsilon 1: {found.advised('epsilon 1').value:.4f} at rate" in repr(found)


def test_rates_are_compared_seed_by_seed_since_each_seed_tests_all_with_the_same_examples() -> None:
    """The seeds are .1 apart, and each says that 1 is .01 better than .3."""
    seeds = np.array([0.6, 0.7, 0.65, 0.75])
    ever = rehearsed({0.3: tuple(seeds - 0.01), 1.0: tuple(seeds)})
    assert ever.as_good("epsilon 1") == (1.0,)
    assert "higher, such as 3" in repr(ever)
    mixed = rehearsed({0.3: tuple(seeds - [0.03, -0.02, 0.03, 0.0]), 1.0: tuple(seeds)})
    assert mixed.best("epsilon 1").learning_rate == 1.0
    assert mixed.as_good("epsilon 1") == (0.3, 1.0)
    assert "epsilon 1: the rates 0.3 and 1 cannot be told apart by 4 seeds" in repr(mixed)
    assert "tried" not in repr(mixed)
    once = rehearsed({0.3: (0.5,), 1.0: (0.6,)})
    assert once.as_good("epsilon 1") == (0.3, 1.0)


def test_what_cannot_be_told_from_the_examples_alone_says_what_gain_would_be() -> None:
    """By four and by twelve seeds: Student's 3.1824 and 2.2010, on the corrected error of each."""
    job, alone = (0.6, 0.7, 0.65, 0.75), (0.62, 0.66, 0.66, 0.7)
    found = rehearsed({0.3: job})
    settings = [
        found.settings[0],
        replace(found.settings[1], scores=rehearsed({0.3: alone}).settings[1].scores),
    ]
    found = replace(found, settings=tuple(settings))
    deviation = np.std(np.array(job) - alone, ddof=1)
    four, twelve = 3.1824 * deviation * (1 / 4 + 1 / 3) ** 0.5, 2.2010 * deviation * (1 / 12 + 1 / 3) ** 0.5
    said = "0.6750 cannot be told apart from the examples alone, 0.6600, by 4 seeds: "
    said += f"here a gain of less than {four:.2g} looks like chance, of less than {twelve:.2g} with "
    assert any(said + "--seeds 12" in line for line in found.remarks())
    assert said + "seeds=12" in repr(found)
    assert rehearsed({0.3: (0.6,)}).settings[0].least_gain_over(found.settings[1]) == math.inf


@pytest.mark.parametrize(
    ("job", "alone", "said"),
    [
        ((0.5, 0.8), (0.7, 0.7), "by 2 seeds: 2 seeds tell nothing here: use 4"),
        (
            (0.2, 0.9, 0.3, 0.9),
            (0.9, 0.2, 0.9, 0.2),
            "by 4 seeds: 4 seeds tell nothing here: label more examples",
        ),
    ],
)
def test_seeds_that_leave_all_open_say_so_and_no_numbers(
    job: tuple[float, ...], alone: tuple[float, ...], said: str
) -> None:
    both = [
        replace(one, scores=scored("", values).scores, sampling_error=0.01)
        for one, values in zip(rehearsed({0.3: (0.5,)}).settings, (job, alone), strict=True)
    ]
    found = Rehearsal(metric="roc_auc", settings=tuple(both))
    assert any(line.endswith(said) for line in found.remarks())
    assert "looks like chance" not in repr(found)
    assert f"epsilon 1: {both[0].value:.4f} at rate 0.3 (99 %: says nothing)" in repr(found)
    assert both[0].interval_text == "says nothing"
    # A loss has no such scale
    losses = tuple(replace(one, sampling_error=None) for one in both)
    assert "looks like chance" in repr(replace(found, settings=losses))


@pytest.mark.parametrize(
    ("loss", "labels", "said"),
    [
        # By Hanley and McNeil's formula, and by the binomial one.
        (
            Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
            [1] * 100 + [0] * 900,
            "1,000 examples, 100 of them positive, tell an AUC of 0.75 to ± 0.075 (99 %) at best",
        ),
        (
            Loss.CROSS_ENTROPY,
            [0, 1, 2, 1] * 250,
            "1,000 examples tell an accuracy of 0.75 to ± 0.035 (99 %) at best",
        ),
        (Loss.MSE, [0.5] * 1_000, ""),
        (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, [0] * 1_000, ""),
    ],
)
def test_examples_say_first_how_well_they_tell_a_score(loss: Loss, labels: list[float], said: str) -> None:
    features = np.zeros((len(labels), 1), np.uint8)
    panel = EvalSet(features=features, labels=np.array(labels))
    assert describe_examples(panel, loss, seeds=4) == describe_examples(panel, loss, seeds=9) == said
    fewer = describe_examples(panel, loss, seeds=2)
    assert ("by 2 seeds, which test with 2 of 4 parts of them: 4 seeds" in fewer) is bool(said)
    assert not said or said not in fewer  # by fewer of the examples a score is told less well


def test_rates_that_one_seed_left_behind_give_no_direction() -> None:
    found = rehearsed({0.3: (0.7, 0.71), 1.0: (0.6,), 3.0: (0.55,)})
    assert "epsilon 1: one seed of 1 and 3 was so much worse that they were left" in repr(found)
    assert "tried" not in repr(found)


def test_a_difference_counts_from_the_quantile_of_so_few_seeds_on() -> None:
    """Student's t of 3 degrees is 3.182; of 4 seeds that share what trains, the root of 1/4 + 1/3 counts."""
    spread = np.array([-1.0, 1.0, -1.0, 1.0]) * 0.01 * (3 / 4) ** 0.5  # of standard deviation .01
    least = 3.1824 * 0.01 * (1 / 4 + 1 / 3) ** 0.5
    for factor, is_better in ((0.999, False), (1.001, True)):
        found = rehearsed({0.3: (0.5,) * 4, 1.0: tuple(0.5 + factor * least + spread)})
        assert (found.as_good("epsilon 1") == (1.0,)) is is_better


def test_seeds_train_and_test_each_rate_with_the_same_examples_and_noise() -> None:
    one, other = (
        RehearsalTraining(
            model=SUBMISSION.model,
            examples=examples(),
            plan=_plan(SUBMISSION, task_of(), 5_000, rate, 8.0),
            name="epsilon 8",
            seed=1,
        )
        for rate in (0.01, 1.0)
    )
    runs = [_TrainingRun(each, _split_examples(each, share=1.0)) for each in (one, other)]
    for drawn in (
        lambda run: run._train.features,
        lambda run: run._test.labels,
        lambda run: next(run._batches()),
        lambda run: run._both_noises(run._trainer.clip(), 5),
    ):
        first, second = map(drawn, runs)
        assert np.array_equal(first, second)


SAME = {0.3: (0.6, 0.7), 1.0: (0.7, 0.61), 3.0: (0.65, 0.65)}


@pytest.mark.parametrize(
    ("scores", "rule", "rate"),
    [
        (SAME, 3.0, 3.0),
        (SAME, 0.5, 1.0),
        (SAME, None, 1.0),
        ({0.3: (0.6, 0.6), 1.0: (0.7, 0.7)}, 0.3, 1.0),
    ],
)
def test_the_rate_of_the_rule_is_advised_where_it_was_tried_and_is_as_good_as_any(
    scores: Mapping[float, tuple[float, ...]], rule: float | None, rate: float
) -> None:
    assert rehearsed(scores, rule).advised("epsilon 1").learning_rate == rate


@pytest.mark.parametrize("rule", [3.0, 0.5, None])
def test_one_rate_is_advised_in_headline_table_command_and_json(
    rule: float | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equally good rates the best by mean is 1, and 3 is the rule's."""
    monkeypatch.setenv("COLUMNS", "200")
    found = rehearsed(SAME, rule)
    advised = found.advised("epsilon 1")
    rate = f"{advised.learning_rate:g}"
    command = f"the rule gives the learning rate {rate}" if rule == 3.0 else f"learning_rate={rate}"
    assert f"epsilon 1: {advised.value:.4f} at rate {rate}," in repr(found)
    assert command in repr(found).splitlines()[-1]
    print_rehearsal(found)
    *_, said = (printed := capsys.readouterr().out.splitlines())
    assert [line.split()[3] for line in printed if line.startswith("* epsilon 1")] == [rate]
    assert command.replace("learning_rate=", "--learning-rate ") in said
    message = RehearsalMessage.of(found)
    marked = [one.learning_rate for one in message.settings if one.name == "epsilon 1" and one.is_advised]
    assert marked == [advised.learning_rate]
    assert message.remarks[-1] == said


def test_what_more_examples_gain_is_continued_and_the_loss_is_as_it_came_out() -> None:
    whole, half = Score(value=0.7, measured=0.7, loss=0.4), Score(value=0.6, measured=0.6, loss=0.9)
    found = _extrapolate(whole, half, 0.5)
    assert found is not None
    assert [found.value, found.measured, found.loss] == pytest.approx([0.75, 0.7, 0.4])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0.6, 0.6), "+0.0500 to the weights as they were given, 0.6000"),
        (
            (0.5, 0.7),
            "+0.0500 to the weights as they were given, 0.6000, which 2 seeds cannot tell from chance",
        ),
        (
            (0.7, 0.7),
            "-0.0500 to the weights as they were given, 0.7000: keep them, or try lower rates",
        ),
        (None, None),
    ],
)
def test_a_job_is_compared_with_the_weights_that_it_begins_at_if_they_know_something(
    given: tuple[float, ...] | None, said: str | None
) -> None:
    """At the rule's rate both seeds score .65."""
    as_given = None if given is None else scored("the weights as they were given", given)
    said = None if said is None else f"epsilon 1: 0.6500, {said}"
    remarks = rehearsed(SAME, 3.0, as_given=as_given).remarks()
    assert [line for line in remarks if "as they were given" in line] == ([] if said is None else [said])


def test_a_job_is_compared_with_a_linear_model_of_the_examples_alone(rehearsal: Rehearsal) -> None:
    """The examples' label is a line's side, which a linear model finds."""
    found = examples()
    outputs = cross_fit_linear(None, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, found, outputs=1).outputs
    fitted = []
    for seed in range(WISH.seeds):
        rows = choose_test_rows(found, seed)
        above = outputs[rows][found.labels[rows] == 1], outputs[rows][found.labels[rows] == 0]
        fitted.append(float((above[0] > above[1].T).mean()))
    assert rehearsal.linear is not None
    assert [one.value for one in rehearsal.linear.scores] == pytest.approx(fitted)
    linear, advised = rehearsal.linear.value, rehearsal.advised("epsilon 8")
    assert linear > 0.9
    gain = f"{advised.value - linear:+.4f} to a linear model of the examples alone, {linear:.4f}"
    said = [line for line in rehearsal.remarks() if "linear" in line and line.startswith("epsilon 8:")]
    assert len(said) == 1
    assert said[0].startswith(f"epsilon 8: {advised.value:.4f}, {gain}")
    assert "linear" not in "".join(rehearsed(SAME, 3.0).remarks())


def test_no_difference_to_a_linear_model_or_of_a_warm_start_is_shown_as_more_than_the_seeds_tell() -> None:
    """Four seeds that scatter by .05 around -.0177 tell nothing; four that agree on it do."""
    job = np.array([0.55, 0.6, 0.58, 0.5956])
    chance, agreed = np.array([0.05, -0.05, 0.06, -0.06]), np.array([0.001, -0.001, 0.001, -0.001])
    for scatter, ends in (
        (
            chance,
            "-0.0177 to a linear model of the examples alone, 0.5991, which 4 seeds cannot tell from chance",
        ),
        (agreed, "-0.0177 to a linear model of the examples alone, 0.5991"),
    ):
        linear = scored("a linear model of the examples alone", job + 0.0177 + scatter)
        found = rehearsed({1.0: tuple(job)}, 1.0, linear=linear)
        assert [line for line in found.remarks() if "linear" in line] == [f"epsilon 1: 0.5814, {ends}"]
        warm = replace(found.settings[0], name=f"epsilon 1{WARM}", is_warm=True, scores=linear.scores)
        remarks = replace(found, linear=None, settings=(*found.settings, warm)).remarks()
        said = [line for line in remarks if "from the given weights" in line]
        assert said[0].endswith("chance") is (scatter is chance)


@pytest.mark.usefixtures("alone_briefly")
def test_the_default_network_is_trained_for_the_same_budget_and_compared() -> None:
    wish = replace(WISH, epsilons=(8.0,), learning_rates=(0.001,), has_default=True)
    found = trained(replace(SUBMISSION, model=dense_network([WIDTH, 2, 1], "relu", seed=1)), wish)
    name = f"epsilon 8{DEFAULT}"
    assert found.names() == ["epsilon 8", NO_NOISE, ALONE, name]
    job, default = found.advised("epsilon 8"), found.default_of("epsilon 8")
    assert default == found.advised(name)
    assert default is not None
    assert default.default is not None
    assert default.costs == job.costs
    # Rows times epsilon call for tables, which numbers without an encoder have not: it is linear
    assert default.default.options == ("--layers", "4,1")
    assert default.value > job.value + 0.05  # at such a rate the job learns nothing
    said = [line for line in found.remarks() if "to the default network" in line]
    rate = f"--learning-rate {default.learning_rate:g} --as-it-is"
    assert len(said) == 1
    assert said[0].startswith(
        f"epsilon 8: {job.value:.4f}, {job.value - default.value:+.4f} to the default network, "
        f"{default.value:.4f}"
    )
    assert said[0].endswith(
        "; to take that: `adserver model create default.onnx --layers 4,1`, and submit it with --loss "
        f"binary_cross_entropy_with_logits --epsilon 8 {rate}"
    )
    assert "client.train(rehearsal.default_of('epsilon 8').default.model, ..., loss=" in repr(found)
    settings = RehearsalMessage.of(found).settings
    assert [one.is_default for one in settings].count(True) == 1
    # It depends on the budget alone, and not on the job's own network
    assert parse(default.default.model, num_features=WIDTH).num_parameters == WIDTH + 1


def test_a_job_is_called_no_better_than_the_default_network_by_chance() -> None:
    def against(*scores: float) -> str:
        other = Rehearsed(
            name=f"epsilon 1{DEFAULT}",
            epsilon=1.0,
            costs=None,
            noise_multiplier=1.0,
            learning_rate=2.0,
            scores=tuple(Score(value=one, measured=one, loss=0.5) for one in scores),
            default=make_default_network(
                Network(hidden=(), are_numbers_in_tables=False, clip_norm=2.0),
                None,
                examples(),
                outputs=1,
                loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
            ),
        )
        found = rehearsed({1.0: (0.7, 0.71)}, 1.0)
        found = replace(found, settings=(*found.settings, other))
        return next(line for line in found.remarks() if "to the default network" in line)

    assert against(0.6, 0.61).endswith("to the default network, 0.6050")
    assert against(0.6, 0.79).endswith(
        "to the default network, 0.6950, which 2 seeds cannot tell from chance"
    )
    taken = against(0.6, 0.83)
    assert "0.7150, which 2 seeds cannot tell from chance; to take that: `adserver model create" in taken
    assert "--learning-rate 2 --clip-norm 2 --as-it-is" in taken
    assert "chance" not in against(0.8, 0.81)


@pytest.mark.parametrize("loss", ["mse", None])
@pytest.mark.usefixtures("alone_briefly")
def test_numbers_and_the_default_network_itself_are_compared_with_none(loss: str | None) -> None:
    wish = replace(WISH, epsilons=(0.5,), learning_rates=(0.5,), seeds=1, has_default=True)
    network = make_default_network(
        Network(hidden=(), are_numbers_in_tables=True),
        None,
        examples(),
        outputs=1,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
    )
    changes: dict[str, Any] = {"loss": loss} if loss else {"model": network.model}
    found = trained(replace(SUBMISSION, rounds=2, **changes), wish)
    assert not any(one.is_default for one in found.settings)
    assert found.default_of("epsilon 0.5") is None


def test_how_to_submit_is_said_in_options_and_in_words_of_python() -> None:
    by_rule, named = rehearsed(SAME, 3.0), rehearsed(SAME, optimizer=OptimizerKind.ADAM)
    assert by_rule.remarks()[-1] == ("epsilon 1: submit with --epsilon 1; the rule gives the learning rate 3")
    assert "epsilon 1: client.train(..., epsilon=1); the rule gives the learning rate 3" in repr(by_rule)
    assert named.remarks()[-1] == "epsilon 1: submit with --epsilon 1 --optimizer adam --learning-rate 1"
    assert 'epsilon 1: client.train(..., epsilon=1, optimizer="adam", learning_rate=1)' in repr(named)
    assert "--" not in repr(by_rule) + repr(named)
    of_rounds = replace(by_rule, settings=tuple(replace(one, rule_rounds=300) for one in by_rule.settings))
    assert of_rounds.remarks()[-1].endswith("; the rule gives the learning rate 3 and 300 rounds")


@pytest.mark.usefixtures("alone_briefly")
def test_without_a_rate_the_rules_is_tried_at_each_epsilon_and_lower_and_higher_ones() -> None:
    job = replace(SUBMISSION, optimizer=None, schedule=None, rounds=2)
    wish = replace(WISH, learning_rates=(), seeds=1)
    found = trained(job, wish)
    rates = {
        name: [one.learning_rate for one in found.settings if one.name == name] for name in found.names()
    }
    assert rates.pop(ALONE) == [*RATES]
    # Rows times epsilon over 20,000, over the clip bound of 1
    assert rates == {
        "epsilon 0.5": [0.17, 0.5, 1.5],
        "epsilon 8": [1.3, 4.0, 12.0],
        NO_NOISE: [1.3, 4.0, 12.0],
    }
    assert {one.name: one.rule_rate for one in found.settings} == {
        "epsilon 0.5": 0.5, "epsilon 8": 4.0, NO_NOISE: None, ALONE: None,
    }  # fmt: skip
    more = trained(job, replace(wish, epsilons=(0.5,), learning_rates=(0.2, 0.5)))
    assert [one.learning_rate for one in more.settings if one.name == "epsilon 0.5"] == [0.5, 0.2]
    with pytest.raises(InvalidTask, match="learning_rate has no default here: the schedule is constant"):
        trained(replace(job, schedule=Schedule()), wish)


def test_rounds_that_a_job_leaves_open_are_the_rules_at_each_epsilon() -> None:
    model = dense_network([WIDTH, 3, 1], "relu", seed=1)
    left: dict[str, Any] = {"rounds": None, "batch_size": None, "optimizer": None, "schedule": None}
    job = replace(SUBMISSION, model=model, **left)
    wish = replace(WISH, learning_rates=(), is_warm=True)

    def rounds(*, is_trained: bool) -> dict[str, int | None]:
        rows = _rows(job, task_of(), wish, 19, is_trained=is_trained)
        assert all(row.plan is not None and row.plan.job.rounds == row.rule_rounds for row in rows)
        return {row.shown: row.rule_rounds for row in rows if row.name != ALONE}

    warm = dict.fromkeys((f"epsilon 0.5{WARM}", f"epsilon 8{WARM}", f"{NO_NOISE}{WARM}"), 120)
    fresh = {"epsilon 0.5": 120, "epsilon 8": 300, NO_NOISE: 300}
    assert rounds(is_trained=False) == {**fresh, **warm}
    assert set(rounds(is_trained=True).values()) == {120}
    with pytest.raises(InvalidTask, match="give rounds to rehearse"):
        trained(replace(job, noise_multiplier=2.0, is_until_budget=True))


def test_on_a_panel_that_tells_little_a_first_score_leaves_no_rate_behind() -> None:
    rows = [_Row(name="epsilon 1", epsilon=1.0, learning_rate=rate, plan=None) for rate in (0.3, 1.0)]
    found = {
        place: [TrainingOutcome(score=Score(value=value, measured=value, loss=0.4))]
        for place, value in enumerate((0.70, 0.75))
    }
    loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    assert _promising(rows, found, loss, examples(160)) == [0, 1]
    assert _promising(rows, found, loss, examples(8_000)) == [1]
    by_rule = [replace(row, rule_rate=0.3) for row in rows]
    assert _promising(by_rule, found, loss, examples(8_000)) == [0, 1]


def test_a_rate_that_was_tried_once_is_not_the_best_of_those_tried_on_all_examples() -> None:
    tried = Rehearsed(
        name="epsilon 1",
        epsilon=1.0,
        costs=None,
        noise_multiplier=1.0,
        learning_rate=0.3,
        scores=tuple(Score(value=value, measured=value, loss=0.5) for value in (0.8, 0.7)),
    )
    hopeless = replace(tried, learning_rate=3.0, scores=(Score(value=0.77, measured=0.77, loss=0.5),))
    refused = replace(tried, learning_rate=9.0, scores=())
    assert Rehearsal(metric="roc_auc", settings=(hopeless, tried, refused)).best("epsilon 1") is tried


def test_a_rehearsal_shows_how_far_its_seeds_are_apart() -> None:
    scores = tuple(Score(value=value, measured=value, loss=0.4) for value in (0.6, 0.8))
    one = Rehearsed(
        name="epsilon 1", epsilon=1.0, costs=None, noise_multiplier=1.0, learning_rate=0.3, scores=scores
    )
    settings = (one, replace(one, name=ALONE, epsilon=None))
    shown = repr(Rehearsal(metric="roc_auc", settings=settings))
    assert "epsilon 1: 0.7000 at rate 0.3, deviation over seeds 0.1414" in shown
    assert "no noise: the job itself without noise, which is not private" in shown
