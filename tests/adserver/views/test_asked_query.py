"""Stored queries in a list, and which of them were of the same."""

from adserver.records.asked_query import AskedWords
from adserver.records.summaries import QuerySummary
from adserver.store.queries import AskedQuery
from adserver.views.asked_query import describe_earlier, query_summary
from maskedlark.canonical import build
from maskedlark.releases.query import QuerySpec
from tests.measured import measuring_world


def summary(number: int, about: str = "count by place") -> QuerySummary:
    return QuerySummary(
        query_id=f"{number:032x}"[::-1],
        kind="query",
        task_id="",
        dataset_id="",
        asked_at=float(number),
        is_answered=True,
        about=about,
    )


def test_the_last_queries_of_the_same_are_named_and_the_others_counted() -> None:
    def told(earlier: int) -> str:
        asked = [summary(9, "count"), *map(summary, range(1, earlier + 2))]
        return describe_earlier(asked, asked[-1].query_id)

    ids = [summary(number).query_id[:12] for number in range(10)]
    assert told(0) == ""
    assert f"query {ids[1]} was of this, too. To see" in told(1)
    assert f"query {ids[3]} was of this, too, as were {ids[2]}, {ids[1]} before it. " in told(3)
    assert f"query {ids[6]} was of this, too, as were {ids[5]}, {ids[4]} and 3 more before it. " in told(6)


def test_a_query_is_described_by_the_titles_of_values_and_keys() -> None:
    of = measuring_world(
        {
            "min_cell_count": 1,
            "values": [
                {"name": "click", "low": 0, "high": 1},
                {"name": "purchase", "low": 0, "high": 9, "title": "Einkauf €"},
            ],
            "keys": [{"name": "campaign", "title": "Kampagne"}, {"name": "place", "size": 3, "title": "Ort"}],
        }
    )
    spec = build(
        QuerySpec,
        {
            "query_id": bytes(16),
            "task_id": of.task.task_id,
            "dataset_id": bytes(32),
            "measures": [{"value": name, "scale": 1} for name in ("purchase", "click", "count")],
            "group_by": [{"key": "place", "size": 3}],
            "levels": [1],
            "where": [{"key": "campaign", "code": 7}],
            "noise_multiplier": 0.0,
            "threshold_noise_multiplier": 0.0,
            "are_rests_shown": False,
        },
    )
    asked = AskedQuery(spec=spec, asked_at=0.0, is_answered=True, words=AskedWords(where={"campaign": "neu"}))
    assert query_summary(asked, of.task).about == "Einkauf €, click, count by Ort where Kampagne = neu"
    # Of a task that is not there
    assert query_summary(asked, None).about == "purchase, click, count by place where campaign = neu"
