"""Queries as they are put to the helpers, with what is sent beside them, and as they are remembered."""

from dataclasses import dataclass, field
from typing import Final

from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec

QUERY_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuery:
    """A query, and the codes of its axes as they are sent beside it."""

    spec: QuerySpec
    codes: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEvaluation:
    """An evaluation with the ONNX file that is sent beside it."""

    spec: EvaluationSpec
    model: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuery:
    """A query that was asked, or was about to be.

    Attributes:
        planned: The query with its codes; None for any other query than of sums.
        discovery: The discovery; None for any other query.
        asked_at: Unix seconds.
        evaluation: The evaluation with its model; None for any other query.
    """

    planned: PlannedQuery | None
    discovery: DiscoverySpec | None
    asked_at: float
    evaluation: PlannedEvaluation | None = None

    @property
    def spec(self) -> AnyQuery:
        """The query itself, whichever it is."""
        planned = self.planned or self.evaluation
        if planned is not None:
            return planned.spec
        if self.discovery is None:
            raise AssertionError("a stored query is of one kind")
        return self.discovery
