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


def test_large_figures_are_whole_with_their_thousands_apart() -> None:
    figure = environment().filters["figure"]
    assert figure(1_234_567.4) == "1\u202f234\u202f567"
    assert figure(999.96, 3) == "1\u202f000"
    assert [figure(one) for one in (-20_000.6, 1_000.0, 999.96, 12.345, 0.0)] == [
        "-20\u202f001",
        "1\u202f000",
        "1\u202f000",
        "12.35",
        "0",
    ]
    assert [figure(one, 2) for one in (150.4, 0.00001)] == ["150", "1e-05"]
    assert [figure(one, 10) for one in (3_600.05, 20_000)] == ["3\u202f600.05", "20\u202f000"]


def test_a_mean_over_a_group_that_may_be_hidden_or_is_near_noise_is_unknown_and_a_sum_is_shown() -> None:
    estimates = [KNOWN, UNKNOWN, LOST]
    rows = [
        {"group": {"place": place}, "Paid (EUR) v1.0": one, "may_be_hidden": one is LOST}
        for place, one in zip(("oslo", "lima", "rome"), estimates, strict=True)
    ]
    result = {
        "columns": [{"name": "Paid (EUR) v1.0", "bucket": None}],
        "rows": rows,
        "records": 60,
        "caption": "99 % intervals",
    }
    values = {
        "kind": "query",
        "about": "sums",
        "query_id": "a1" * 16,
        "dataset_id": "b2" * 16,
        "asked_at": 0.0,
        "result": result,
        "means": {"mean of paid": estimates},
        "reading": [],
        "place": "queries",
        "navigation": [],
    }
    _, of_sum, of_mean = draw(environment(), "query.html", values).split('<div class="card">')
    # As the owner writes it, whose name is no path
    assert "<h2>Paid (EUR) v1.0</h2>" in of_sum
    # To the place that the interval leaves known, as the command's table has it
    known = "2\u202f542\u00a0±\u00a032"
    assert [row[:2] for row in cells_of(of_mean)] == [
        ["oslo", known],
        ["lima", "unknown"],
        ["rome", "unknown"],
    ]
    assert "987" not in of_mean
    assert "765" not in of_mean
    assert [row[:2] for row in cells_of(of_sum)] == [
        ["oslo", known],
        ["lima", "unknown (no interval at this noise)"],
        ["rome", "700 to 800 (may be hidden)"],
    ]
