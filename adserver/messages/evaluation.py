"""Evaluations: as a client asks one, and their answers."""

from collections.abc import Iterable
from typing import Any, Literal, Self

from pydantic import Field

from adserver.measuring.evaluation_result import CurvePoint, EvaluationResult, Metric
from adserver.messages.base import File, Message, RequestBody, Whole
from adserver.messages.query import EstimateMessage, QueryId, QueryItem, ReleaseMessage, release_fields
from adserver.records.defaults import DEFAULT_BINS

_OF_CLASSES = "the first choice is right"
_AXES = {
    "roc": ("false_positive_rate", "true_positive_rate"),
    "pr": ("recall", "precision"),
    "calibration": ("predicted", "observed"),
}


class RocPoint(Message):
    """One point of the ROC curve."""

    threshold: float
    false_positive_rate: EstimateMessage
    true_positive_rate: EstimateMessage


class PrPoint(Message):
    """One point of the precision-recall curve."""

    threshold: float
    recall: EstimateMessage
    precision: EstimateMessage


class CalibrationPoint(Message):
    """A group of scores."""

    threshold: float
    predicted: EstimateMessage
    observed: EstimateMessage


class EvaluationMessage(ReleaseMessage):
    """The answer to an evaluation. What is not finite is null."""

    positives: Literal["the first choice is right", "label 1"]
    num_bins: Whole
    noise_scale: float
    metrics: dict[str, EstimateMessage]
    roc: tuple[RocPoint, ...]
    pr: tuple[PrPoint, ...]
    calibration: tuple[CalibrationPoint, ...]

    @classmethod
    def of(cls, result: EvaluationResult) -> Self:
        """Describe a result."""
        curves = {
            name: [{"threshold": one.threshold, across: one.x, up: one.y} for one in getattr(result, name)]
            for name, (across, up) in _AXES.items()
        }
        return cls.model_validate(
            {
                **release_fields(result),
                "positives": _OF_CLASSES if result.is_of_classes else "label 1",
                "num_bins": result.num_bins,
                "noise_scale": result.noise_scale,
                "metrics": {one.name: one.estimate for one in result.metrics},
                **curves,
            }
        )

    def value(self) -> EvaluationResult:
        """Return the result."""
        return EvaluationResult(
            **self.release(),
            is_of_classes=self.positives == _OF_CLASSES,
            metrics=tuple(Metric(name=name, estimate=one.estimate()) for name, one in self.metrics.items()),
            roc=_points(self.roc, *_AXES["roc"]),
            pr=_points(self.pr, *_AXES["pr"]),
            calibration=_points(self.calibration, *_AXES["calibration"]),
            num_bins=self.num_bins,
            noise_scale=self.noise_scale,
        )


class EvaluationDetail(QueryItem):
    """An evaluation with its stored answer, if there is one."""

    result: EvaluationMessage | None


class AskEvaluation(RequestBody):
    """An evaluation of a model, or of a job's latest weights."""

    model: File | None = Field(None, description="An ONNX file, in base64.", repr=False)
    job: str = Field("", description="The start of the id of a job; instead of a model.")
    bins: int = DEFAULT_BINS
    epsilon: float | None = None
    dataset: str = Field("", description="The start of its id; may be omitted if there is only one.")
    query_id: QueryId = ""


def _points(sent: Iterable[Any], across: str, up: str) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(threshold=one.threshold, x=getattr(one, across).estimate(), y=getattr(one, up).estimate())
        for one in sent
    )
