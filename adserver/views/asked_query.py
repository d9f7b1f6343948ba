"""A stored query or evaluation in a list."""

from collections.abc import Mapping, Sequence
from typing import Final

from adserver.records.plain_names import shown_name
from adserver.records.summaries import QuerySummary
from adserver.store.queries import AskedQuery
from maskedlark.releases.counting import Condition
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.task import Task

# Hex digits that people type of an id.
_SHOWN_ID: Final = 12
# Earlier queries that a note names
_MOST_NAMED: Final = 3


def query_summary(asked: AskedQuery, task: Task | None) -> QuerySummary:
    """Summarise a stored query of any kind, with names as its task's titles have them."""
    spec = asked.spec
    return QuerySummary(
        query_id=spec.query_id.hex(),
        kind=spec.kind,
        task_id=spec.task_id.hex(),
        dataset_id=spec.dataset_id.hex(),
        asked_at=asked.asked_at,
        is_answered=asked.is_answered,
        about=_about(asked, None if task is None else task.measurement),
    )


def describe_earlier(summaries: Sequence[QuerySummary], query_id: str) -> str:
    """Name the last earlier queries of the same values, groups and conditions; empty if there is none.

    Args:
        summaries: The queries to look among, oldest first.
        query_id: Of the new one, in hex.
    """
    before, new = list[QuerySummary](), None
    for one in summaries:
        if one.query_id == query_id:
            new = one
            break
        before.append(one)
    if new is None:
        return ""
    of = (new.kind, new.dataset_id, new.about)
    same = [one for one in before if one.is_answered and (one.kind, one.dataset_id, one.about) == of]
    if not same:
        return ""
    last, *others = (one.query_id[:_SHOWN_ID] for one in reversed(same))
    named = ", ".join(others[: _MOST_NAMED - 1])
    more = f" and {len(others) - _MOST_NAMED + 1} more" if len(others) >= _MOST_NAMED else ""
    too = f", as were {named}{more} before it" if named else ""
    return (
        f"{new.about}: query {last} was of this, too{too}. To see an answer again, `adserver aggregate "
        f"--again {last}`, or client.repeat_aggregate({last!r}), costs nothing"
    )


def _about(asked: AskedQuery, measurement: Measurement | None) -> str:
    """Describe a query in a line."""
    values = {} if measurement is None else {one.name: shown_name(one) for one in measurement.values}
    keys = {} if measurement is None else {one.name: shown_name(one) for one in measurement.keys}
    match asked.spec:
        case QuerySpec() as spec:
            # A histogram is many measures of one value
            what = ", ".join(dict.fromkeys(values.get(one.value, one.value) for one in spec.measures))
            by = ", ".join(keys.get(axis.key, axis.key) for axis in spec.group_by)
            return (f"{what} by {by}" if by else what) + _conditions(spec.where, asked, keys)
        case DiscoverySpec() as spec:
            found = ", ".join(keys.get(name, name) for name in spec.keys)
            return f"values of {found}" + _conditions(spec.where, asked, keys)
        case EvaluationSpec() as spec:
            return f"model {spec.weights_digest.hex()[:_SHOWN_ID]} in {spec.num_bins} score bins"
        case _:
            return asked.spec.kind


def _conditions(where: Sequence[Condition], asked: AskedQuery, keys: Mapping[str, str]) -> str:
    """Describe what the reports meet; a code of which the word is not known is a number."""
    told = " and ".join(
        f"{keys.get(one.key, one.key)} = {asked.words.where.get(one.key, one.code)}" for one in where
    )
    return f" where {told}" if told else ""
