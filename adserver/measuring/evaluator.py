"""Ask both helpers how good a model is, and read their answer."""

from adserver.measuring.evaluation_metrics import Histogram, smooth
from adserver.measuring.evaluation_result import EvaluationResult, read
from adserver.measuring.query_runner import Asking, release_fields
from adserver.measuring.request import query_epsilon
from adserver.records.asked_query import ChosenId, PlannedQuery, StoredAnswer
from adserver.records.defaults import DEFAULT_BINS
from adserver.store.datasets import Dataset
from maskedlark.canonical import build
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model import weights
from maskedlark.model.exactness import why_general
from maskedlark.model.graph import Model
from maskedlark.model.heads import Head, TrainedLoss, classes_scored
from maskedlark.model.onnx_file import parse
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import ROWS, UNITS, EvaluationSpec, loss_to_evaluate
from maskedlark.releases.release import fitting
from maskedlark.reports.task import Task


def plan_evaluation(
    model: bytes,
    *,
    task: Task,
    dataset: Dataset,
    query_id: bytes,
    epsilon: float | None = None,
    num_bins: int = DEFAULT_BINS,
    head: Head | None = None,
) -> PlannedQuery[EvaluationSpec]:
    """Check an evaluation against its task and dataset, and fix its noise.

    Args:
        model: An ONNX file with its weights.
        task: The task.
        dataset: The dataset.
        query_id: 16 random bytes.
        epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
        num_bins: The score bins.
        head: Of a model of several heads, the one to evaluate.

    Raises:
        InvalidTask: a number is out of its range.
        InvalidModel: the model is not accepted, or does not fit the task's labels.
        JobRefused(UNKNOWN_DATASET, DOMAIN_TOO_LARGE, OVERFLOW, NOISE_OUT_OF_RANGE, BUDGET_EXHAUSTED)
    """
    dataset.check_usable(task.task_id)
    parsed = parse(model, num_features=task.num_features)
    check_is_exact(parsed, loss_to_evaluate(task, parsed, head))
    spec = build(
        EvaluationSpec,
        {
            "query_id": query_id,
            "task_id": task.task_id,
            "dataset_id": dataset.dataset_id,
            "model_digest": parsed.digest,
            "weights_digest": weights_digest_of(parsed),
            "num_bins": num_bins,
            "noise_multiplier": 0.0,  # found by `fitting`, from what it may cost
            "head": head,
        },
    )
    planned = fitting(task, spec, epsilon=query_epsilon(epsilon, task))
    planned.check(task, records=dataset.size)
    return PlannedQuery(spec=planned, beside=model)


def check_is_exact(model: Model, loss: TrainedLoss | None = None) -> None:
    """Refuse a model on the general path, whose score bins helpers would not agree on.

    Raises:
        InvalidModel(UNKNOWN_OPERATOR)
    """
    if reasons := why_general(model, loss):
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR,
            f"{'; '.join(reasons)}: only models with an exact form are evaluated",
        )


def weights_digest_of(model: Model) -> bytes:
    """Return the digest of a model's own weights, as helpers receive them.

    Raises:
        InvalidModel(NOT_FINITE)
    """
    named = zip(model.initial_values, model.parameters, strict=True)
    return weights.digest(weights.encode([weights.quantise(values, known.name) for values, known in named]))


@frozen
class Evaluator(Asking[EvaluationSpec, EvaluationResult]):
    """Asks evaluations over one dataset of a task.

    Attributes:
        was_trained_on: See `EvaluationResult`.
    """

    was_trained_on: bool = False

    def evaluate(
        self, planned: PlannedQuery[EvaluationSpec], chosen: ChosenId | None = None
    ) -> EvaluationResult:
        """Keep a new evaluation, have it charged and answered, and read the answer.

        Raises:
            JobRefused(QUERY_CHANGED): something else was asked under the id that the client chose.
            InvalidModel, JobRefused: what a helper refuses with; HELPERS_DISAGREE if they did not score
                alike.
            HelperUnavailable: a helper did not answer in time; `again` asks the same evaluation, which is
                charged only once.
        """
        kept = self._keep(planned, chosen)
        return self._ask_and_store(kept.planned, chosen, is_new=kept.is_new)

    def _length(self, spec: EvaluationSpec) -> int:
        return spec.num_numbers

    def _read(
        self, planned: PlannedQuery[EvaluationSpec], answer: StoredAnswer, found: DiscoverySpec | None
    ) -> EvaluationResult:
        return read_evaluation(self.task, self.dataset, planned, answer, was_trained_on=self.was_trained_on)


def histogram_of(planned: PlannedQuery[EvaluationSpec], answer: StoredAnswer) -> Histogram:
    """Return the records by label and score bin (2, B) of a kept answer, without its noise's negatives."""
    return smooth(answer.total.reshape(ROWS, planned.spec.num_bins) / UNITS)


def read_evaluation(
    task: Task,
    dataset: Dataset,
    planned: PlannedQuery[EvaluationSpec],
    answer: StoredAnswer,
    *,
    was_trained_on: bool,
) -> EvaluationResult:
    """Decode both helpers' answer about a model; the same answer always gives the same result.

    Raises:
        JobRefused(SUM_OUT_OF_RANGE): no honest reports could give it.
    """
    spec, total = planned.spec, answer.total
    spec.check_possible(task, total, records=dataset.size)
    noise_scale = spec.noise_units(task) / UNITS
    model = parse(planned.beside, num_features=task.num_features)
    is_of_classes = classes_scored(model, loss_to_evaluate(task, model, spec.head)) is not None
    readings = read(
        total.reshape(ROWS, spec.num_bins) / UNITS,
        mechanism=task.mechanism,
        noise_scale=noise_scale,
        is_of_classes=is_of_classes,
    )
    return EvaluationResult(
        **release_fields(task, dataset, spec, answer),
        is_of_classes=is_of_classes,
        **pick_attributes(readings, ("metrics", "roc", "pr", "calibration")),
        num_bins=spec.num_bins,
        noise_scale=noise_scale,
        was_trained_on=was_trained_on,
    )
