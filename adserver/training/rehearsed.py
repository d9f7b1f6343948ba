"""How a rehearsal did: the scores of each setting, which differ by more than chance, and what to do.

    found.advised("epsilon 1").learning_rate, found.as_good("epsilon 1")
    print(found)

`adserver.training.rehearsal` makes it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from adserver.records.frames import ColumnTypes, arrow_stream, frame
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.training.default_network import DefaultNetwork
from adserver.training.inference import ERRORS_OF_99, OFF
from adserver.training.panel_note import KEEP_BACK
from adserver.training.rehearsal_training import ALONE, PARTS, Score
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    import pandas as pd

WARM: Final = ", warm start"
"""What the name of a setting that begins at trained weights ends in."""
DEFAULT: Final = ", default network"
"""What the name of a setting of the default network ends in."""
REFERENCES: Final = (
    "no noise: the job itself without noise, which is not private: it shows what noise costs; examples "
    "alone: plain training on the examples, without any reports"
)
"""What a reader is told of the rows that are no jobs to submit."""
METRIC_NAMES: Final = {"roc_auc": "AUC", "accuracy": "accuracy", "negative_loss": "minus the loss"}
"""What people call the metrics of `Rehearsal.metric`."""
# Of Student's t: 95 % between both sides.
_CONFIDENCE: Final = 0.975
# Of an area or an accuracy: all that there is between chance and certainty
_NOTHING: Final = 0.5
# So many more than were asked for are named, with what they would tell.
_MORE_SEEDS: Final = 8

_COLUMN_TYPES: Final[ColumnTypes] = {
    "name": str,
    **dict.fromkeys(
        (
            "epsilon",
            "collusion_epsilon",
            "noise_multiplier",
            "learning_rate",
            "value",
            "spread",
            "low",
            "high",
        ),
        float,
    ),
    **dict.fromkeys(("loss", "mean_over_rate", "clipped"), float),
    "seeds": int,
    "refused": str,
}


@frozen
class Rehearsed:
    """One setting, and how it did.

    Attributes:
        name: `epsilon 1`, `no noise`, or `examples alone`: plain training on the examples without the job;
            of a job that begins at trained weights, with `, warm start`, and of one with quickstart's default
            network in place of the model, with `, default network`.
        epsilon: Of the job; None without noise.
        costs: What the accountant charges; None without noise.
        noise_multiplier: As the job would name it.
        learning_rate: As the job would name it; of the examples alone that of plain training.
        scores: One a seed; fewer where the first one was hopeless, which the rule's rate never is; none where
            the job was refused.
        clipped: The share of gradients that were clipped, in the last tenth of the rounds.
        refused: Why there are no scores.
        is_warm: Whether it begins at weights that were trained on the examples.
        rule_rate: The learning rate that the rule gives the job at this epsilon; None where it has none.
        rule_rounds: The rounds that the rule gives the job at this epsilon; None where the job names them.
        sampling_error: The standard error of the mean score as a figure of people like the examples, of so
            many that were scored: Hanley and McNeil's of an area under the curve, the binomial one of an
            accuracy; None for other scores.
        default: The default network, where it was trained in place of the model.
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
    rule_rate: float | None = None
    rule_rounds: int | None = None
    sampling_error: float | None = None
    default: DefaultNetwork | None = None

    @classmethod
    def of_scores(cls, name: str, scores: Sequence[Score]) -> Self:
        """Return what is no job and has scores of the same seeds: what jobs are compared with."""
        return cls(
            name=name, epsilon=None, costs=None, noise_multiplier=0.0, learning_rate=0.0, scores=tuple(scores)
        )

    @property
    def is_default(self) -> bool:
        """Whether the default network was trained in place of the model."""
        return self.default is not None

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

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 99 % interval of what one job will reach; None without a score, or without a standard error.

        Its variance is that of the sampling plus that of one seed. Seeds test with different examples, so
        their spread holds some of the sampling too, and the interval is rather too wide.
        """
        if self.sampling_error is None or not self.scores:
            return None
        error = math.hypot(self.sampling_error, 0.0 if math.isnan(self.spread) else self.spread)
        return max(0.0, self.value - ERRORS_OF_99 * error), min(1.0, self.value + ERRORS_OF_99 * error)

    @property
    def interval_text(self) -> str:
        """The interval as it is printed; empty without one."""
        if self.interval is None:
            return ""
        low, high = self.interval
        return "says nothing" if high - low > _NOTHING else f"{low:.3f} to {high:.3f}"

    def is_better_than(self, other: "Rehearsed") -> bool:
        """Return whether this setting scores higher than another one by more than chance.

        Seed for seed both train and test with the same examples, samples and noise, so their differences
        are compared and not their means. They count if the mean is beyond the 95 % quantile of Student's t
        for so few of them, two-sided, with the standard error of Nadeau and Bengio (Inference for the
        generalization error, Machine Learning 52, 2003): seeds train with parts of the same examples, so
        that their own spread is too small. One seed tells nothing. A rate that the first seed left far
        behind was not repeated, and is worse.
        """
        if len(other.scores) != len(self.scores):
            return len(other.scores) < len(self.scores)
        return self.value - other.value > self.least_gain_over(other)

    def least_gain_over(self, other: "Rehearsed", *, seeds: int | None = None) -> float:
        """Return what the mean difference to a setting of as many seeds must exceed to be no chance.

        With `seeds`, what so many would tell, if the differences went on to spread as they do. Infinite by
        one seed, or by two numbers of them.
        """
        if len(self.scores) < 2 or len(other.scores) != len(self.scores):
            return math.inf
        from scipy.special import stdtrit

        differences = np.array([one.value for one in self.scores]) - [one.value for one in other.scores]
        number = seeds or len(differences)
        error = float(np.std(differences, ddof=1)) * math.sqrt(1 / number + 1 / (PARTS - 1))
        return float(stdtrit(number - 1, _CONFIDENCE)) * error


@frozen
class Rehearsal:
    """All settings, in the order in which they were asked for.

    Attributes:
        metric: What `Score.value` is: roc_auc, accuracy or negative_loss.
        settings: Of the job at each epsilon, without noise, and of the examples alone.
        warm_model: The model with weights that were trained on all examples, and a note of that in its
            metadata; None if no warm start was asked for, or no job can be made.
        was_trained_on: Whether the model that was given names the examples in such a note.
        told: What was done to the model first; a job with these examples as its evaluation set does it too.
        optimizer: The job's.
        schedule: Its learning rate's.
        as_given: The scores of the weights that were given, if they know something of the labels: what a job
            from them has to beat. None of others.
        linear: The scores of a linear model of the examples alone, by cross-validation; None where none was
            trained.
    """

    metric: str
    settings: tuple[Rehearsed, ...]
    warm_model: bytes | None = field(default=None, repr=False)
    was_trained_on: bool = False
    told: str = ""
    optimizer: OptimizerKind = OptimizerKind.SGD
    schedule: ScheduleKind = ScheduleKind.CONSTANT
    as_given: Rehearsed | None = None
    linear: Rehearsed | None = None

    def best(self, name: str) -> Rehearsed:
        """Return the setting of a name whose mean score is the highest, of those that were tried most often.

        One that the first seed showed to be hopeless was tried once, on examples that may be easier.
        """
        named = (one for one in self.settings if one.name == name)
        return max(named, key=lambda one: (len(one.scores), one.value))

    def as_good(self, name: str) -> tuple[float, ...]:
        """Return the rates of a name that cannot be told apart from the best one, which is among them."""
        best = self.best(name)
        named = (one for one in self.settings if one.name == name and one.scores)
        return tuple(
            sorted(one.learning_rate for one in named if one is best or not best.is_better_than(one))
        )

    def advised(self, name: str) -> Rehearsed:
        """Return the setting of a name to submit, of those that were tried.

        It is the one at the rule's rate unless the best one is better by more than chance, and then that one.
        """
        best = self.best(name)
        by_rule = (one for one in self.settings if one.name == name and one.learning_rate == best.rule_rate)
        return next((one for one in by_rule if one.learning_rate in self.as_good(name)), best)

    def default_of(self, name: str) -> Rehearsed | None:
        """Return the setting of the default network at the epsilon of a name; None if it was not trained."""
        wanted = name.removesuffix(WARM) + DEFAULT
        return next((one for one in self.settings if one.name == wanted and one.scores), None)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each setting: its mean score with spread and 99 % interval, loss and cost."""
        return frame(self._to_rows(), _COLUMN_TYPES)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the same rows as an Arrow stream, for pandas, polars or duckdb."""
        return arrow_stream(self._to_rows(), _COLUMN_TYPES, requested_schema)

    def _to_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of each setting by name."""
        for one in self.settings:
            low, high = one.interval or (None, None)
            yield {
                **pick_attributes(one, ("name", "epsilon", "noise_multiplier", "learning_rate")),
                **pick_attributes(one, ("mean_over_rate", "clipped", "refused")),
                "collusion_epsilon": None if one.costs is None else one.costs.colluding,
                "value": one.value if one.scores else None,
                "spread": None if math.isnan(one.spread) else one.spread,
                "low": low,
                "high": high,
                "loss": one.loss if one.scores else None,
                "seeds": len(one.scores),
            }

    def names(self) -> list[str]:
        """Return the names of the settings, each once."""
        return list(dict.fromkeys(one.name for one in self.settings))

    def remarks(self, *, is_python: bool = False) -> list[str]:
        """Return what to do about the advised settings, one line each, in options or in words of Python."""
        panel = "eval_set=" if is_python else "--eval-set"
        lines = [f"{self.told}: submit with the examples as {panel}, too"] if self.told else []
        if self.was_trained_on:
            lines.append(f"the model was trained on these examples: all scores are too good; {KEEP_BACK}")
        if self.warm_model is not None:
            lines.append(
                f"the warm model was trained on all examples: as {panel} they make the figures of its job "
                f"too good; {KEEP_BACK}"
            )
        alone = self.advised(ALONE)
        for name in self.names():
            job = self.advised(name)
            if job.epsilon is None or not job.scores or job.default is not None:
                continue
            if alone.scores and alone.is_better_than(job):
                lines.append(f"{name}: the examples alone do better: {alone.value:.4f} and {job.value:.4f}")
            elif alone.scores and not job.is_better_than(alone):
                lines.append(
                    f"{name}: {job.value:.4f} cannot be told apart from the examples alone, "
                    f"{alone.value:.4f}, by {plural(len(job.scores), 'seed')}"
                    + _describe_resolution(job, alone, is_python=is_python)
                )
            if (default := self.default_of(name)) is not None:
                lines.append(self._compare_default(job, default, is_python=is_python))
            if self.linear is not None:
                lines.append(_compare(job, self.linear))
            if self.as_given is not None and not job.is_warm:
                advice = "" if job.value > self.as_given.value else ": keep them, or try lower rates"
                lines.append(_compare(job, self.as_given) + advice)
            over = job.mean_over_rate
            if over is not None and abs(over - 1) > OFF:
                lines.append(
                    f"{name}: the mean prediction is {over:.2f} of the base rate: calibrate the model, with "
                    + ("job.calibrate(panel=FILE)" if is_python else "`adserver model calibrate`")
                )
            if job.is_warm:
                cold = self.advised(name.removesuffix(WARM))
                lines.append(_compare(job, cold, "the same from the given weights"))
            lines += self._describe_rates(self.best(name))
            lines.append(f"{name}: {self._describe_job(job, is_python=is_python)}")
        return lines

    def _compare_default(self, job: Rehearsed, default: Rehearsed, *, is_python: bool) -> str:
        """Say how a job does next to the default network; how to take that, unless the job is better."""
        line = _compare(job, default, "the default network")
        if job.value > default.value or default.default is None:
            return line
        clip, rate = default.default.network.clip_norm, default.learning_rate
        # By the rule for a person's own network, a hidden layer may have more
        rounds = default.rule_rounds if default.default.network.hidden else None
        if is_python:
            take = (
                f"client.train(rehearsal.default_of({job.name!r}).default.model, ..., "
                f'loss="{default.default.loss.value}", epsilon={job.epsilon:g}, learning_rate={rate:g}'
                + (f", rounds={rounds}" if rounds else "")
                + (f", clip_norm={clip:g}" if clip else "")
                + ", standardise=False)"
            )
        else:
            take = (
                f"`adserver model create default.onnx {' '.join(default.default.options)}`, and submit it "
                f"with --loss {default.default.loss.value} --epsilon {job.epsilon:g} --learning-rate {rate:g}"
                + (f" --rounds {rounds}" if rounds else "")
                + (f" --clip-norm {clip:g}" if clip else "")
                + " --as-it-is"
            )
        return f"{line}; to take that: {take}"

    def _describe_job(self, advised: Rehearsed, *, is_python: bool) -> str:
        """Say how to submit a job."""
        rate, quote = advised.learning_rate, '"' if is_python else ""
        settings = {"epsilon": f"{advised.epsilon:g}"}
        # Left out, the rate follows the reports that there will be
        if rate != advised.rule_rate:
            if self.optimizer is not OptimizerKind.SGD:
                settings["optimizer"] = f"{quote}{self.optimizer.value}{quote}"
            if self.schedule is not ScheduleKind.CONSTANT:
                settings["schedule"] = f"{quote}{self.schedule.value}{quote}"
            settings["learning_rate"] = f"{rate:g}"
        if is_python:
            job = f"client.train(..., {', '.join(f'{key}={value}' for key, value in settings.items())})"
        else:
            options = (f"--{key.replace('_', '-')} {value}" for key, value in settings.items())
            job = f"submit with {' '.join(options)}"
        given = [f"the learning rate {rate:g}"] if rate == advised.rule_rate else []
        given += [f"{advised.rule_rounds} rounds"] if advised.rule_rounds else []
        return job + (f"; the rule gives {' and '.join(given)}" if given else "")

    def _describe_rates(self, best: Rehearsed) -> list[str]:
        """Say which rates are as good as the best, or where to go on if it is the lowest or highest tried."""
        named = sorted(
            (one for one in self.settings if one.name == best.name and one.scores),
            key=lambda one: one.learning_rate,
        )
        name, rate, good = best.name, best.learning_rate, self.as_good(best.name)
        lower, higher = f"{rate / 3:.2g}", f"{rate * 3:.2g}"
        if len(named) == 1:
            return [f"{name}: only the rate {rate:g} was tried: try {lower} and {higher}, too"]
        if len(good) > 1:
            *others, last = (f"{one:g}" for one in good)
            seeds = plural(len(best.scores), "seed")
            return [f"{name}: the rates {', '.join(others)} and {last} cannot be told apart by {seeds}"]
        once = [f"{one.learning_rate:g}" for one in named if len(one.scores) < len(best.scores)]
        if len(once) == len(named) - 1:
            # One seed is no reason to go on in their direction, or away from it
            return [f"{name}: one seed of {' and '.join(once)} was so much worse that they were left"]
        if best is named[-1]:
            return [f"{name}: {rate:g} is the highest rate that was tried: try higher, such as {higher}"]
        if best is named[0]:
            return [f"{name}: {rate:g} is the lowest rate that was tried: try lower, such as {lower}"]
        return []

    def __repr__(self) -> str:
        """Show the advised setting of each name, and what to do about them."""
        advised = [self.advised(name) for name in self.names()]
        lines = [
            f"{one.name}: {one.value:.4f} at rate {one.learning_rate:g}"
            + (f" (99 %: {one.interval_text})" if one.interval_text else "")
            + ("" if math.isnan(one.spread) else f", deviation over seeds {one.spread:.4f}")
            if one.scores
            else f"{one.name}: refused: {one.refused}"
            for one in advised
            if one.scores or one.refused
        ]
        return "\n".join([f"Rehearsal by {self.metric}", *lines, REFERENCES, *self.remarks(is_python=True)])


def _compare(job: Rehearsed, other: Rehearsed, what: str = "") -> str:
    """Say how far a job is above something else, and whether its seeds tell that from chance."""
    line = (
        f"{job.name}: {job.value:.4f}, {job.value - other.value:+.4f} to {what or other.name}, "
        f"{other.value:.4f}"
    )
    if job.is_better_than(other) or other.is_better_than(job):
        return line
    return f"{line}, which {plural(len(job.scores), 'seed')} cannot tell from chance"


def _describe_resolution(job: Rehearsed, other: Rehearsed, *, is_python: bool) -> str:
    """Say what gain would have been told, and what more seeds would tell; empty if nothing is known of it."""
    least, more = job.least_gain_over(other), len(job.scores) + _MORE_SEEDS
    if not 0 < least < math.inf:
        return ""
    if least > _NOTHING and job.sampling_error is not None:
        told = f": {plural(len(job.scores), 'seed')} tell nothing here"
        return f"{told}: use {PARTS}" if len(job.scores) < PARTS else f"{told}: label more examples"
    return (
        f": here a gain of less than {least:.2g} looks like chance, of less than "
        f"{job.least_gain_over(other, seeds=more):.2g} with {'seeds=' if is_python else '--seeds '}{more}"
    )
