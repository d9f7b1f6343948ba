"""Queries: in a list, as a client asks one, and their answers."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, PlainSerializer, ValidationInfo, field_validator, model_validator

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import NOT_KNOWN, Estimate, NoInterval
from adserver.measuring.intervals import CONFIDENCE
from adserver.measuring.result import AggregateResult, ReleasedResult
from adserver.messages.base import Message, RequestBody, Whole, finite
from adserver.messages.budget import EpsilonsMessage
from adserver.records.defaults import GROUP, MAY_BE_HIDDEN
from adserver.records.summaries import QuerySummary
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import MAX_KEYS, MAX_VALUES
from maskedlark.reports.task_kinds import PrivacyUnit

if TYPE_CHECKING:
    from adserver.measuring.aggregate_forecast import AggregateForecast

QueryId = Annotated[
    str,
    Field(
        pattern="^([0-9a-fA-F]{32})?$",
        description="An idempotency id chosen by the client, 16 random bytes in hex. Repeating a request with"
        " the same id returns the same answer and is charged once. A different request with a used "
        "id is refused with 409, query_changed.",
    ),
]
_RELEASE = ("query_id", "task_id", "dataset_id", "records", "delta", "mechanism", "unit", "reports_per_user")
_THRESHOLD = ("min_cell_count", "threshold_noise", "threshold_margin", "discovery_margin")
# Without noise nothing bounds what is learned; JSON has null for that.
_UNBOUNDED = Epsilons(ad_server=math.inf, colluding=math.inf)


# Sums are of 64 bits, and so is their noise. Squares of much larger numbers, which tables add up, overflow.
_MOST_NUMBER: Final = 1e30
# A number that JSON has as null where it is not finite.
_Known = Annotated[float, Field(allow_inf_nan=True), PlainSerializer(finite, return_type=float | None)]


class EstimateMessage(Message):
    """One number with its 99 % interval; null where it is not known.

    Of a cell, of a mean or quantile, or of an evaluation's metric or curve.
    `no_interval` says why it is missing: too few records, at this noise or without noise.
    """

    value: _Known
    standard_error: _Known
    low: _Known
    high: _Known
    no_interval: NoInterval | None = None

    @field_validator("value", "standard_error", "low", "high", mode="before")
    @classmethod
    def _read_null(cls, value: float | None, info: ValidationInfo) -> float:
        """Read null as `NOT_KNOWN` has it."""
        # Each field has its own stand-in: the value is no number, the bounds are infinite.
        return getattr(NOT_KNOWN, str(info.field_name)) if value is None else value

    def estimate(self) -> Estimate:
        """Return the estimate."""
        return Estimate(**dict(self))


class CellMessage(EstimateMessage):
    """One number of a cell: none that a sum of reports cannot have, since tables add cells up."""

    @field_validator("value", "standard_error", "low", "high")
    @classmethod
    def _check_magnitude(cls, value: float, info: ValidationInfo) -> float:
        """Refuse a number that is neither a sum nor what null stands for."""
        is_unknown = math.isnan(value) or value == getattr(NOT_KNOWN, str(info.field_name))
        return value if is_unknown else _check_number(value)


def _check_number(value: float) -> float:
    if not abs(value) <= _MOST_NUMBER:
        raise ValueError(f"expected a number from -{_MOST_NUMBER:g} to {_MOST_NUMBER:g}")
    return value


class ReleaseMessage(Message):
    """What every release says of itself. Epsilons are null without noise."""

    query_id: str
    task_id: str
    dataset_id: str
    records: Whole
    delta: float
    mechanism: Mechanism
    unit: PrivacyUnit = PrivacyUnit.REPORT
    reports_per_user: Whole | None = Field(None, description="The most reports of a person in the dataset.")
    epsilon: EpsilonsMessage | None
    dataset_epsilon_spent: EpsilonsMessage | None = Field(
        description="Of the dataset; where `unit` is user of each person, over all datasets of the task."
    )
    # An older ad server sends neither
    confidence: float = Field(CONFIDENCE, description="How often an interval covers.")
    caption: str = Field("", description="What the intervals, the epsilon and the numbers are of, in words.")

    @staticmethod
    def fields_of(result: ReleasedResult) -> dict[str, Any]:
        """Return the fields of this message for a result."""
        is_noisy = result.mechanism is not Mechanism.NONE
        return {
            **pick_attributes(result, _RELEASE),
            "epsilon": result.cost if is_noisy else None,
            "dataset_epsilon_spent": result.dataset_spent if is_noisy else None,
            "caption": result.caption,
        }

    def release(self) -> dict[str, Any]:
        """Return the fields of a `ReleasedResult`."""
        return {
            **pick_attributes(self, _RELEASE),
            "cost": self.epsilon.value() if self.epsilon else _UNBOUNDED,
            "dataset_spent": self.dataset_epsilon_spent.value() if self.dataset_epsilon_spent else _UNBOUNDED,
        }


class RowMessage(Message):
    """A cell: its group, whether it may be hidden, and an estimate under the name of each column."""

    model_config = ConfigDict(extra="allow")

    group: dict[str, str]
    may_be_hidden: bool = False
    # Columns have the names of the task's values: of those fields only the type is known here.
    __pydantic_extra__: dict[str, CellMessage]


class ResultMessage(ReleaseMessage):
    """The answer to a query."""

    min_cell_count: Whole
    threshold_noise: float
    threshold_margin: float
    # An older ad server sends none
    discovery_margin: float = 0.0
    where: dict[str, str] = Field({}, description="The word of each key that reports were to have.")
    columns: tuple[Column, ...] = Field(min_length=1)
    # Also of groups that may all be hidden
    rows: tuple[RowMessage, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        """Refuse columns that no table could show."""
        for column in self.columns:
            ends = (column.bucket, column.clipped_to, column.report_range)
            for number in (column.noise_scale, *(end for pair in ends for end in pair or ())):
                _check_number(number)
            if column.parts_per_unit < 1:
                raise ValueError("parts_per_unit of a column is below 1")
        # A row has its numbers by name, next to these two fields
        names = {GROUP, MAY_BE_HIDDEN}
        for place, column in enumerate(self.columns):
            if column.name in names:
                raise ValueError(f"column {place} has the name of another one, or of a row's field")
            names.add(column.name)
        return self

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        """Refuse rows of which one has another number of values or other keys than the table has columns."""
        names = {column.name for column in self.columns}
        keys = [*self.rows[0].group]
        for place, row in enumerate(self.rows):
            if row.__pydantic_extra__.keys() != names:
                raise ValueError(f"row {place} does not have one value for each column")
            if [*row.group] != keys:
                raise ValueError(f"row {place} is of other keys than the first one")
        return self

    @classmethod
    def of(cls, result: AggregateResult) -> Self:
        """Describe a result."""
        names = [column.name for column in result.columns]
        rows = (
            {
                GROUP: dict(zip(result.group_by, row.group, strict=True)),
                MAY_BE_HIDDEN: row.may_be_hidden,
                **dict(zip(names, row.estimates, strict=True)),
            }
            for row in result.rows
        )
        return cls(
            **cls.fields_of(result),
            **pick_attributes(result, _THRESHOLD),
            where=dict(result.where),
            columns=result.columns,
            rows=tuple(map(RowMessage.model_validate, rows)),
        )

    def value(self) -> AggregateResult:
        """Return the result."""
        names = [column.name for column in self.columns]
        return AggregateResult(
            **self.release(),
            group_by=tuple(self.rows[0].group),
            where=tuple(self.where.items()),
            columns=self.columns,
            rows=tuple(
                ResultRow(
                    group=tuple(row.group.values()),
                    estimates=tuple(row.__pydantic_extra__[name].estimate() for name in names),
                    may_be_hidden=row.may_be_hidden,
                )
                for row in self.rows
            ),
            **pick_attributes(self, _THRESHOLD),
        )


class LevelForecastMessage(Message):
    """Half of the 99 % interval of each column in a group by these keys; without keys, in the total."""

    keys: tuple[str, ...]
    half_widths: dict[str, float]


class AggregateForecastMessage(Message):
    """What a query will cost and how wide its intervals will be. Epsilons are null without noise.

    Means and quantiles are not in it: their widths depend on the data.
    """

    epsilon: EpsilonsMessage | None
    discovery_epsilon: EpsilonsMessage | None = Field(
        description="The part of epsilon that finds values first; null without a discovery."
    )
    delta: float
    mechanism: Mechanism
    unit: PrivacyUnit
    records: Whole
    discovered: tuple[str, ...] = Field(description="The keys whose values are found first.")
    levels: tuple[LevelForecastMessage, ...]
    are_at_most: bool = Field(description="Whether the widths are upper bounds.")
    shown_from: float = Field(description="From about how many reports a group is shown.")
    found_from: float | None = Field(
        description="From about how many reports a value is found; null without a discovery."
    )
    noise_warning: str = Field(description="What the answer will not show at this noise; empty if nothing.")
    refusal: str = Field(description="Why the budget holds no such query, and what fits; empty if it does.")

    @classmethod
    def of(cls, forecast: "AggregateForecast") -> Self:
        """Describe a forecast."""
        names = [column.name for column in forecast.columns]
        is_noisy = forecast.mechanism is not Mechanism.NONE
        copied = (
            *("delta", "mechanism", "unit", "records"),
            *("discovered", "are_at_most", "shown_from", "noise_warning", "refusal"),
        )
        return cls.model_validate(
            {
                **pick_attributes(forecast, copied),
                "epsilon": forecast.cost if is_noisy else None,
                "discovery_epsilon": forecast.discovery_cost if is_noisy else None,
                "levels": [
                    {"keys": one.keys, "half_widths": dict(zip(names, one.half_widths, strict=True))}
                    for one in forecast.levels
                ],
                "found_from": forecast.found_from if forecast.discovered else None,
            }
        )


class QueryItem(Message):
    """A query or evaluation in a list."""

    query_id: str
    kind: str
    task_id: str
    dataset_id: str
    asked_at: float
    is_answered: bool
    about: str

    def value(self) -> QuerySummary:
        """Return the query."""
        return QuerySummary(**pick_attributes(self, QueryItem.model_fields))


class QueryDetail(QueryItem):
    """A query with its stored answer, if there is one."""

    result: ResultMessage | None


class CodesBetween(RequestBody):
    """All codes of a key from the first to the last one."""

    first: int
    last: int


class AskQuery(RequestBody):
    """A query; see `adserver aggregate` for each field's meaning."""

    # Twice what a task can declare: a name given twice is answered with a reason, a million are not read.
    values: list[str] = Field([], max_length=2 * MAX_VALUES)
    histograms: list[str] = Field([], max_length=2 * MAX_VALUES)
    group_by: list[str] = Field([], max_length=MAX_KEYS)
    where: dict[str, str | int] = Field({}, max_length=MAX_KEYS)
    domains: dict[str, list[str | int] | CodesBetween] = Field({}, max_length=MAX_KEYS)
    discover: bool = False
    roll_up: bool = False
    epsilon: float | None = None
    dataset: str = Field("", description="The start of its id; may be omitted if there is only one.")
    query_id: QueryId = ""
