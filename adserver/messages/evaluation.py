"""Evaluations: as a client asks one, and their answers."""

from collections.abc import Iterable
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field

from adserver.measuring.evaluation_forecast import EvaluationForecast
from adserver.measuring.evaluation_result import CurvePoint, EvaluationResult, Metric
from adserver.messages.base import File, Message, RequestBody, Whole
from adserver.messages.budget import EpsilonsMessage
from adserver.messages.query import EstimateMessage, QueryId, QueryItem, ReleaseMessage
from adserver.records.defaults import DEFAULT_BINS
from adserver.records.exported_model import ModelWeights
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.mechanism import Mechanism

_OF_CLASSES = "the first choice is right"
_AXES = {
    "roc": ("false_positive_rate", "true_positive_rate"),
    "pr": ("recall", "precision"),
    "calibration": ("predicted", "observed"),
}


class PointMessage(Message):
    """One point of a curve, with an estimate under the name of each axis."""

    model_config = ConfigDict(extra="allow")

    threshold: float
    # Each curve calls its axes by their own names.
    __pydantic_extra__: dict[str, EstimateMessage]


class EvaluationMessage(ReleaseMessage):
    """The answer to an evaluation. What is not finite is null."""

    positives: Literal["the first choice is right", "label 1"]
    num_bins: Whole
    noise_scale: float
    was_trained_on: bool = Field(description="Whether a job has trained on these reports.")
    warnings: tuple[str, ...]
    metrics: dict[str, EstimateMessage]
    roc: tuple[PointMessage, ...]
    pr: tuple[PointMessage, ...]
    calibration: tuple[PointMessage, ...]

    @classmethod
    def of(cls, result: EvaluationResult) -> Self:
        """Describe a result."""
        curves = {
            name: [{"threshold": one.threshold, across: one.x, up: one.y} for one in getattr(result, name)]
            for name, (across, up) in _AXES.items()
        }
        return cls.model_validate(
            {
                **cls.fields_of(result),
                "positives": _OF_CLASSES if result.is_of_classes else "label 1",
                "num_bins": result.num_bins,
                "noise_scale": result.noise_scale,
                "was_trained_on": result.was_trained_on,
                "warnings": result.warnings(),
                "metrics": {one.name: one.estimate for one in result.metrics},
                **curves,
            }
        )

    def value(self) -> EvaluationResult:
        """Return the result.

        Raises:
            KeyError: a point has no estimate of an axis.
        """
        curves: Any = {name: _points(getattr(self, name), *axes) for name, axes in _AXES.items()}
        return EvaluationResult(
            **self.release(),
            is_of_classes=self.positives == _OF_CLASSES,
            metrics=tuple(Metric(name=name, estimate=one.estimate()) for name, one in self.metrics.items()),
            **curves,
            num_bins=self.num_bins,
            noise_scale=self.noise_scale,
            was_trained_on=self.was_trained_on,
        )


class EvaluationForecastMessage(Message):
    """What an evaluation will cost and how wide its intervals will be. Epsilons are null without noise."""

    epsilon: EpsilonsMessage | None
    delta: float
    records: Whole
    num_bins: Whole
    bin_error: float = Field(description="The standard deviation of the noise on a bin, in records.")
    positives: Literal["the first choice is right", "label 1"]
    base_rate: float = Field(description="The assumed share of positives among the records.")
    auc: float = Field(description="The assumed AUC, of a calibrated model.")
    metrics: dict[str, EstimateMessage]
    calibration: tuple[EstimateMessage, ...]
    refusal: str = Field(
        description="Why the budget holds no such evaluation, and what fits; empty if it does."
    )

    @classmethod
    def of(cls, forecast: EvaluationForecast) -> Self:
        """Describe a forecast."""
        return cls.model_validate(
            {
                **pick_attributes(
                    forecast,
                    (
                        "delta",
                        "records",
                        "num_bins",
                        "bin_error",
                        "base_rate",
                        "auc",
                        "calibration",
                        "refusal",
                    ),
                ),
                "positives": _OF_CLASSES if forecast.is_of_classes else "label 1",
                "epsilon": None if forecast.mechanism is Mechanism.NONE else forecast.cost,
                "metrics": {one.name: one.estimate for one in forecast.metrics},
            }
        )


class EvaluationDetail(QueryItem):
    """An evaluation with its stored answer, if there is one."""

    result: EvaluationMessage | None


class AskEvaluation(RequestBody):
    """An evaluation of a model, or of a job's weights."""

    model: File | None = Field(None, description="An ONNX file, in base64.", repr=False)
    job: str = Field("", description="The start of a job's id or name; instead of a model.")
    head: str = Field("", description="Of a job with several heads, the name of the one to evaluate.")
    weights: ModelWeights = Field(
        ModelWeights.LATEST,
        description="Of a job: its latest weights, or those that did best on its evaluation set.",
    )
    bins: int = DEFAULT_BINS
    epsilon: float | None = None
    dataset: str = Field("", description="The start of its id; may be omitted if there is only one.")
    query_id: QueryId = ""


def _points(sent: Iterable[PointMessage], across: str, up: str) -> tuple[CurvePoint, ...]:
    found = ((one.threshold, one.__pydantic_extra__) for one in sent)
    return tuple(
        CurvePoint(threshold=at, x=axes[across].estimate(), y=axes[up].estimate()) for at, axes in found
    )
