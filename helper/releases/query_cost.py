"""What a query, a discovery, an evaluation or a sum of updates will take, estimated before it begins.

Counts follow from the question, the task and the size of the dataset, which the ad server knows: a refusal
tells nothing. The prices are about twice what was measured (`round_cost` says how).
"""

from typing import Final

from helper.trust.floors import WorkEstimate
from maskedlark.model.core_seconds import scoring_seconds
from maskedlark.model.graph import Model
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.update import UpdateSpec, form_of
from maskedlark.reports.task import Task

_NS: Final = 1e-9
# Of one pass over one column of a record.
_LOOK_NS: Final = 20.0
# Of one key of a record in a discovery: it is sorted, and its code may have noise.
_SORT_NS: Final = 400.0
# Of one number of an answer: its noise, blind and encoding.
_NUMBER_NS: Final = 400.0
# Of one coordinate of one device's update: the stream that it is expanded from, and the addition.
_COORDINATE_NS: Final = 12.0
# Of one bin's edge, a logarithm of 40 digits.
_EDGE_NS: Final = 40_000.0
_NUMBER_BYTES: Final = 80
# Of one record in one level of a query, or one key of a discovery: its cell, rest, and what is compared.
_COLUMN_BYTES: Final = 40
# Of one record and candidate label of an evaluation: its row, its cell and its mask share's halves.
_SCORED_BYTES: Final = 24


def query_cost(task: Task, spec: QuerySpec | DiscoverySpec | UpdateSpec, records: int) -> WorkEstimate:
    """Return what an answer takes, but for an evaluation's.

    Args:
        task: The task.
        spec: The question, which was checked.
        records: How many reports the dataset has.
    """
    match spec:
        case QuerySpec():
            numbers, levels = spec.num_numbers(task), len(spec.levels)
            looks = (
                len(spec.where) + 4 * len(spec.group_by) + 8 * levels + 2 * levels * spec.num_columns(task)
            )
            return WorkEstimate(
                seconds=_NS * (records * looks * _LOOK_NS + 2 * numbers * _NUMBER_NS),
                num_bytes=numbers * _NUMBER_BYTES
                + _shares_bytes(task, records)
                + _COLUMN_BYTES * records * (levels + 1),
            )
        case DiscoverySpec():
            keys = len(spec.keys)
            return WorkEstimate(
                seconds=_NS
                * (records * (keys * _SORT_NS + len(spec.where) * _LOOK_NS) + spec.num_values * _NUMBER_NS),
                num_bytes=spec.num_values * _NUMBER_BYTES
                + _shares_bytes(task, records)
                + _COLUMN_BYTES * records,
            )
        case UpdateSpec():
            length = form_of(task).length
            return WorkEstimate(
                seconds=_NS * length * (records * _COORDINATE_NS + _NUMBER_NS),
                num_bytes=_NUMBER_BYTES * length,
            )


def evaluation_cost(
    task: Task, spec: EvaluationSpec, model: Model, *, records: int, scoring_bytes: int
) -> WorkEstimate:
    """Return what an evaluation takes: scores of all records, and the count of their bins.

    Args:
        task: The task.
        spec: The evaluation, which was checked.
        model: Its model.
        records: How many reports the dataset has.
        scoring_bytes: Of memory that scoring takes at once.
    """
    counted = records * task.num_candidates
    return WorkEstimate(
        seconds=scoring_seconds(model, records=records)
        + _NS * (4 * counted * _LOOK_NS + spec.num_bins * _EDGE_NS + spec.num_numbers * _NUMBER_NS),
        num_bytes=scoring_bytes
        + _shares_bytes(task, records)
        + _SCORED_BYTES * counted
        + _NUMBER_BYTES * spec.num_numbers,
    )


def _shares_bytes(task: Task, records: int) -> int:
    """Return the bytes of a dataset's shares without features, as they come from disk and in order."""
    return 2 * records * (task.opened_length - task.num_features)
