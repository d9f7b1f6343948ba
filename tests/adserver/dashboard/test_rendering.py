"""What a page says of the figures that it is given."""

import re
from typing import Any, Final

from adserver.dashboard.rendering import draw, environment

KNOWN: Final[dict[str, Any]] = {"value": 2541.5, "low": 2510.0, "high": 2573.0, "no_interval": None}
UNKNOWN: Final[dict[str, Any]] = {"value": 987.5, "low": None, "high": None, "no_interval": "noise"}
# As files and the command have it
LOST: Final[dict[str, Any]] = {"value": 765.5, "low": 700.0, "high": 800.0, "no_interval": None}


def cells_of(card: str) -> list[list[str]]:
    """The text of each row's cells."""
    body = card.split("<tbody>")[1].split("</tbody>", maxsplit=1)[0]
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in body.split("<tr>")[1:]
    ]


def test_large_figures_are_whole_with_commas_between_thousands() -> None:
    figure = environment().filters["figure"]
    assert figure(1_234_567.4) == "1,234,567"
    assert figure(999.96, 3) == "1,000"
    assert [figure(one) for one in (-20_000.6, 1_000.0, 999.96, 12.345, 0.0)] == [
        "-20,001",
        "1,000",
        "1,000",
        "12.35",
        "0",
    ]
    assert [figure(one, 2) for one in (150.4, 0.00001)] == ["150", "1e-05"]
    assert [figure(one, 10) for one in (3_600.05, 20_000)] == ["3,600.05", "20,000"]


def test_a_query_has_a_row_for_each_group_and_its_histograms_folded() -> None:
    rows = [
        {"group": {"place": place}, "Paid v1.0[1..9]": one, "may_be_hidden": one is LOST}
        for place, one in zip(("oslo", "lima", "rome"), (KNOWN, UNKNOWN, LOST), strict=True)
    ]
    bucket = {"name": "Paid v1.0[1..9]", "title": "Paid v1.0", "bucket": [1, 9], "counted_by": ""}
    values = {
        "kind": "query",
        "about": "sums",
        "query_id": "a1" * 16,
        "dataset_id": "b2" * 16,
        "asked_at": 0.0,
        "result": {"columns": [bucket], "rows": rows, "caption": "99 % intervals"},
        "keys": 1,
        "most_rows": 200,
        "names": ("place", "Paid v1.0", "mean of Paid v1.0"),
        "groups": (("oslo <b>", "2,542 ± 32", "unknown"),),
        "gaps": {"Paid v1.0": ("reports without Paid v1.0 hold 0",)},
        "reading": ["1 group not shown: the CSV file has all"],
        "place": "queries",
        "may_operate": False,
        "navigation": [],
    }
    whole = draw(environment(), "query.html", values)
    _, of_groups, of_histogram = re.split(r'<div class="card">|<details class="card"', whole)
    # As the owner writes them, whose name is no path
    assert re.findall(r"<th [^>]*>(.*?)</th>", of_groups) == ["place", "Paid v1.0", "mean of Paid v1.0"]
    assert cells_of(of_groups) == [["oslo &lt;b&gt;", "2,542 ± 32", "unknown"]]
    assert '<p class="dim">1 group not shown: the CSV file has all.</p>' in whole
    assert "<summary>Histogram of Paid v1.0 in each group</summary>" in of_histogram
    assert '<p class="dim">Reports without Paid v1.0 hold 0.</p>' in of_histogram
    # To the place that the interval leaves known, as the command's table has it
    assert [row[:3] for row in cells_of(of_histogram)] == [
        ["oslo", "1 to 9", "2,542\u00a0±\u00a032"],
        ["lima", "1 to 9", "unknown (no interval at this noise)"],
        ["rome", "1 to 9", "700 to 800 (may be hidden)"],
    ]
