"""What a task measures, as people read it: a row for each value and key that a query can name."""

from collections.abc import Sequence
from typing import Final

from maskedlark.reports.measurement import Key, Measurement, Value
from maskedlark.terminal.plural import plural

# Of a key's categories or a value's buckets
_MOST_LISTED: Final = 40


def measurement_rows(measurement: Measurement | None) -> list[tuple[str, object]]:
    """Return a name and a description of each setting, value and key; numbers are in values' units."""
    if measurement is None:
        return []
    rows: list[tuple[str, object]] = [("min_cell_count", measurement.min_cell_count)]
    if measurement.small_cell_delta is not None:
        rows.append(("small_cell_delta", measurement.small_cell_delta))
    rows.append(("value count", "1 in each report"))
    rows += [(f"value {_named(value)}", _describe_value(value)) for value in measurement.values]
    rows += [(f"key {_named(key)}", _describe_key(key)) for key in measurement.keys]
    return rows


def _named(one: Value | Key) -> str:
    return f"{one.name} ({one.title})" if one.title else one.name


def _describe_value(value: Value) -> str:
    def spell(number: int) -> str:
        return f"{number / value.parts_per_unit:,.10g}"

    parts = f", in parts of 1/{value.parts_per_unit:,}" if value.parts_per_unit > 1 else ""
    clipped = " (numbers outside are clipped)" if value.is_clamped else ""
    buckets = (
        f"; buckets from {_list_first([*map(spell, value.bucket_starts)])}" if value.bucket_starts else ""
    )
    return f"{spell(value.low)} to {spell(value.high)}{parts}{clipped}{buckets}"


def _describe_key(key: Key) -> str:
    if key.categories:
        return f"{plural(len(key.categories), 'category', 'categories')}: {_list_first(key.categories)}"
    return "any word or number" if key.size is None else f"numbers 0 to {key.size - 1}"


def _list_first(items: Sequence[object]) -> str:
    listed = ", ".join(map(str, items[:_MOST_LISTED]))
    more = len(items) - _MOST_LISTED
    return f"{listed} and {more:,} more (adserver task show --json has all)" if more > 0 else listed
