"""A stored query or evaluation in a list."""

from collections.abc import Sequence
from typing import Final

from adserver.records.summaries import QuerySummary
from adserver.store.queries import AskedQuery
from maskedlark.releases.counting import Condition
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec

# Hex digits that people type of an id.
_SHOWN_ID: Final = 12


def query_summary(asked: AskedQuery) -> QuerySummary:
    """Summarise a stored query of any kind."""
    spec = asked.spec
    return QuerySummary(
        query_id=spec.query_id.hex(),
        kind=spec.kind,
        task_id=spec.task_id.hex(),
        dataset_id=spec.dataset_id.hex(),
        asked_at=asked.asked_at,
        is_answered=asked.is_answered,
        about=_about(asked),
    )


def describe_earlier(summaries: Sequence[QuerySummary], query_id: str) -> str:
    """Name the last earlier query of the same values, groups and conditions; empty if there is none.

    Args:
        summaries: All queries, oldest first.
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
    earlier = same[-1].query_id[:_SHOWN_ID]
    return (
        f"{new.about}: query {earlier} was of this, too. To see an answer again, `adserver aggregate --again "
        f"{earlier}`, or client.repeat_aggregate({earlier!r}), costs nothing"
    )


def _about(asked: AskedQuery) -> str:
    """Describe a query in a line."""
    match asked.spec:
        case QuerySpec() as spec:
            # A histogram is many measures of one value
            what = ", ".join(dict.fromkeys(measure.value for measure in spec.measures))
            by = ", ".join(axis.key for axis in spec.group_by)
            return (f"{what} by {by}" if by else what) + _conditions(spec.where, asked)
        case DiscoverySpec() as spec:
            return f"values of {', '.join(spec.keys)}" + _conditions(spec.where, asked)
        case EvaluationSpec() as spec:
            return f"a model in {spec.num_bins} score bins"
        case _:
            return asked.spec.kind


def _conditions(where: Sequence[Condition], asked: AskedQuery) -> str:
    """Describe what the reports meet; a code of which the word is not known is a number."""
    told = " and ".join(f"{one.key} = {asked.words.where.get(one.key, one.code)}" for one in where)
    return f" where {told}" if told else ""
