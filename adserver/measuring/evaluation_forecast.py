"""How wide the intervals of an evaluation will be, before anything is charged, from public facts alone.

The noise follows from epsilon, the bins and the task, the rest from a histogram that a calibrated model of an
assumed AUC has on so many reports: its intervals are computed by the functions that read a real answer.
"""

from collections.abc import Sequence
from statistics import NormalDist, median
from typing import Final

import numpy as np

from adserver.budgets.query_room import why_query_refused
from adserver.measuring.estimate import Estimate
from adserver.measuring.evaluation_metrics import Histogram
from adserver.measuring.evaluation_result import Metric, read
from adserver.measuring.request import query_epsilon
from adserver.records.defaults import ASSUMED_AUC, DEFAULT_BINS
from adserver.store.datasets import Dataset
from maskedlark.canonical import build
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import DatasetBudget
from maskedlark.releases.evaluation import ROWS, UNITS, EvaluationSpec
from maskedlark.releases.release import deviation_of_both, fitting
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind

ASSUMED_RATE: Final = 0.1
"""The share of records of label 1 where the caller gives none."""
ASSUMED_RIGHT: Final = 0.5
"""The share of records whose first choice among several classes is right, where the caller gives none."""
_FIGURES: Final = ("roc_auc", "confidence_roc_auc", "loss", "accuracy", "mean_over_rate")


@frozen
class EvaluationForecast:
    """What an evaluation will cost, and how wide its intervals will be.

    Attributes:
        cost: Of the evaluation.
        delta: What both epsilons are read at.
        records: Reports in the dataset.
        num_bins: The score bins.
        mechanism: The noise.
        bin_error: The standard deviation of both helpers' noise on a bin of one label, in records.
        is_of_classes: Whether the task has more than two classes, so that positives are the records whose
            first choice is right, not those of label 1.
        base_rate: The share of positives that is assumed.
        auc: The AUC that is assumed, of a calibrated model.
        metrics: The figures of such a model, each with the 99 % interval that it will have.
        calibration: The same of the observed share in the calibration's groups, from the lowest score up.
        refusal: Why both helpers would refuse it, with the epsilon that fits; empty if they would not, or
            the budget was not asked for.
    """

    cost: Epsilons
    delta: float
    records: int
    num_bins: int
    mechanism: Mechanism
    bin_error: float
    is_of_classes: bool
    base_rate: float
    auc: float
    metrics: tuple[Metric, ...]
    calibration: tuple[Estimate, ...]
    refusal: str = ""

    @property
    def bin_records(self) -> float:
        """The reports that a bin of one label has on average."""
        return self.records / (2 * self.num_bins)

    def __repr__(self) -> str:
        """Show the cost, the widths and what they assume, a line for each."""
        return "\n".join(self.lines())

    def lines(self) -> tuple[str, ...]:
        """Return what it costs, how wide intervals will be, and what that assumes."""
        widths = [(one.name, [one.estimate]) for one in self.metrics]
        widths.append((f"calibration in {len(self.calibration)} groups", [*self.calibration]))
        cost = (
            "without noise"
            if self.mechanism is Mechanism.NONE
            else f"for epsilon {self.cost.ad_server:.4g} ({self.cost.colluding:.4g} against the ad server "
            f"with one helper) at delta {self.delta:.2g}"
        )
        positives = "have a right first choice" if self.is_of_classes else "have label 1"
        return (
            *([f"this evaluation is refused: {self.refusal}"] if self.refusal else []),
            f"{cost}, over {self.records:,} reports, 99 % intervals of sampling and noise are about: "
            + ", ".join(f"{name} {_width(found)}" for name, found in widths),
            f"this assumes that {self.base_rate:g} of the records {positives}, and a calibrated model whose "
            f"AUC is {self.auc:g} (or as you give them: --base-rate, --auc; base_rate=, auc=); the "
            f"noise on each of 2 x {self.num_bins} bins has a standard error of "
            f"{self.bin_error:.3g} records, and a bin has {self.bin_records:.3g} on average",
        )


def forecast_evaluation(
    task: Task,
    dataset: Dataset,
    *,
    epsilon: float | None = None,
    num_bins: int = DEFAULT_BINS,
    base_rate: float | None = None,
    auc: float = ASSUMED_AUC,
    budget: DatasetBudget | None = None,
) -> EvaluationForecast:
    """Return what an evaluation on a dataset will cost and say. Nothing is asked and nothing is charged.

    Args:
        task: The task.
        dataset: The dataset.
        epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
        num_bins: The score bins.
        base_rate: The share of records of label 1, above 0 and below 1; in a task of more than two classes
            of those whose first choice is right. By default `ASSUMED_RATE` or `ASSUMED_RIGHT`.
        auc: Of the model, from 0.5 up and below 1.
        budget: Of the dataset; None: whether the evaluation fits is not said.

    Raises:
        InvalidTask: a number is out of its range.
        InvalidModel(WRONG_LOSS): the task's labels are numbers.
        JobRefused: as `adserver.measuring.evaluator.plan_evaluation`.
    """
    is_of_classes = task.labels.size > ROWS
    if base_rate is None:
        base_rate = ASSUMED_RIGHT if is_of_classes else ASSUMED_RATE
    if not 0 < base_rate < 1:
        raise InvalidTask(f"base_rate is {base_rate:g}, but must be above 0 and below 1")
    if not 0.5 <= auc < 1:
        raise InvalidTask(f"auc is {auc:g}, but must be from 0.5 up and below 1")
    if task.labels.kind is not LabelKind.CLASSES:
        raise InvalidModel(
            ModelReason.WRONG_LOSS, "evaluation requires classes, but the labels of this task are numbers"
        )
    dataset.check_usable(task.task_id)
    # What is charged and how noisy it is does not depend on the model
    asked = {
        "query_id": bytes(16),
        "task_id": task.task_id,
        "dataset_id": dataset.dataset_id,
        "model_digest": bytes(32),
        "weights_digest": bytes(32),
        "num_bins": num_bins,
        "noise_multiplier": 0.0,  # found by `fitting`, from what it may cost
    }
    spec = fitting(task, build(EvaluationSpec, asked), epsilon=query_epsilon(epsilon, task))
    spec.check(task, records=dataset.size)
    noise_scale = spec.noise_units(task) / UNITS
    readings = read(
        _expected_histogram(dataset.size, num_bins, base_rate, auc),
        mechanism=task.mechanism,
        noise_scale=noise_scale,
        is_of_classes=is_of_classes,
    )
    return EvaluationForecast(
        cost=spent(spec.charges(task), task.delta),
        delta=task.delta,
        records=dataset.size,
        num_bins=num_bins,
        mechanism=task.mechanism,
        bin_error=noise_scale * deviation_of_both(task.mechanism),
        is_of_classes=is_of_classes,
        base_rate=base_rate,
        auc=auc,
        metrics=tuple(one for one in readings.metrics if one.name in _FIGURES),
        calibration=tuple(one.y for one in readings.calibration),
        refusal="" if budget is None else why_query_refused(spec.charges(task), budget),
    )


def _expected_histogram(records: int, bins: int, base_rate: float, auc: float) -> Histogram:
    """Return (2, B) the records of each label by score bin that a calibrated model is expected to have.

    Its logits are normal for either label, with the same variance s^2, and s^2 apart: then what it predicts
    is the chance of label 1, and its AUC is the normal distribution at s over the root of 2.
    """
    spread = max(NormalDist().inv_cdf(auc) * 2**0.5, 1e-6)
    middle = np.log(base_rate / (1 - base_rate))
    edges = np.arange(1, bins) / bins
    logits = np.log(edges / (1 - edges))
    rows = []
    for share, sign in ((1 - base_rate, -1), (base_rate, 1)):
        law = NormalDist(float(middle + sign * spread**2 / 2), spread)
        below = np.array([0.0, *map(law.cdf, logits.tolist()), 1.0])
        rows.append(records * share * np.diff(below))
    return np.stack(rows)


def _width(found: Sequence[Estimate]) -> str:
    """Describe half of an interval, the median of those that are known of several."""
    halves = [(one.high - one.low) / 2 for one in found if one.no_interval is None]
    return f"± {median(halves):.2g}" if halves else "unknown"
