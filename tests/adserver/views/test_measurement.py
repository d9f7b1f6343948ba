"""What a task measures, as people read it."""

from adserver.views.measurement import measurement_rows
from maskedlark.canonical import build
from maskedlark.reports.measurement import Measurement


def test_values_are_in_their_units_and_have_their_titles() -> None:
    spend = {"name": "spend", "low": 0, "high": 360_050, "is_clamped": True, "bucket_starts": [0, 1_000]}
    declared = {
        "min_cell_count": 20,
        "small_cell_delta": 1e-6,
        "values": [
            {**spend, "title": "Ad spend €", "parts_per_unit": 100},
            {"name": "bought", "low": 0, "high": 1},
        ],
        "keys": [
            {"name": "land", "size": 2, "categories": ["at", "de"], "title": "Land"},
            {"name": "place"},
            {"name": "hour", "size": 24},
        ],
    }
    assert dict(measurement_rows(build(Measurement, declared))) == {
        "min_cell_count": 20,
        "small_cell_delta": 1e-6,
        "value count": "1 in each report",
        "value spend (Ad spend €)": "0 to 3,600.5, in parts of 1/100 (numbers outside are clipped); "
        "buckets from 0, 10",
        "value bought": "0 to 1",
        "key land (Land)": "2 categories: at, de",
        "key place": "any word or number",
        "key hour": "numbers 0 to 23",
    }
    assert measurement_rows(None) == []


def test_of_many_categories_the_first_are_listed() -> None:
    key = {"name": "city", "size": 42, "categories": [f"c{n}" for n in range(42)]}
    *_, (_, listed) = measurement_rows(build(Measurement, {"min_cell_count": 1, "keys": [key]}))
    assert str(listed).endswith("c38, c39 and 2 more (adserver task show --json has all)")
