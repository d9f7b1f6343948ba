"""What a project measures: `[measure]`, as a task declares it, browsers report it and a query asks for it.

    plan = plan_measurement(table, data, measure)
    plan.declared                                 # what both helpers sign
    plan.browser_options                          # ("--value", "revenue=revenue*100", "--key", ...)

Reports hold hundredths where the column has cents, and the task declares so; results are in the column's own
unit, under its own name.
"""

import json
import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import compress
from typing import Final

from adserver.measuring.estimate import Estimate
from adserver.measuring.result import AggregateResult
from adserver.quickstart.people import count_rows, why_not_learned
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings
from adserver.records.defaults import GROUP, MAY_BE_HIDDEN, NO_WORDS, OTHER
from adserver.records.plain_names import (
    distinct_names,
    filled_name,
    filled_name_of,
    numbered_name,
    order_of,
    plain_name,
    word_name_of,
)
from maskedlark.canonical import build, encode
from maskedlark.encoding.cells import Cells, number, said
from maskedlark.encoding.close_names import list_known
from maskedlark.encoding.dates import are_dates
from maskedlark.encoding.people_columns import why_private
from maskedlark.encoding.table import Table
from maskedlark.encoding.unread_cells import describe_units
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.reports.measurement import COUNT, MAX_MAGNITUDE, MAX_WORD, Measurement
from maskedlark.terminal.plural import plural

MIN_CELL_COUNT: Final = 20
"""Groups of fewer reports are hidden, and are in the rest of their table."""
MOST_CATEGORIES: Final = 1_000
MOST_DECIMALS: Final = 6
# Buckets of a value with quantiles: from the most down, each begins at the next one's start over this, as an
# interval that begins and ends at bucket bounds is no narrower; and how many, since each has its own noise
_BUCKET_RATIO: Final = 1.25
_MOST_BUCKETS: Final = 20
# A title has at most 100: room for a number
_MOST_OF_TITLE: Final = 96
# Words of a column that a message names
_MOST_WORDS: Final = 4
# Letters of a long word that a message shows
_SHOWN_OF_WORD: Final = 40
_TRUTHS: Final = frozenset({"yes", "no", "true", "false"})
_WORDS_ALONE: Final = ("word without a group of its own", "words without a group of their own")


@frozen
class MeasurementPlan:
    """What is measured, in the words of each party.

    Attributes:
        declared: What the task declares.
        browser_options: The options of `browser-sim run` that say which column holds what.
        table_options: Those of `browser-sim encode` for the columns that are secret, and so no features.
        names: For each declared value its title: its column, COLUMN==WORD, or `rows with COLUMN`; with a
            number where another has that name.
        filled: For each value of a column with gaps the value that counts the rows with a cell, both by the
            names of results: a mean divides by it. The values of one column share it.
        keys: For each declared key its column, the coarsest first.
        quantiles: For each declared value with buckets, the shares to read off them.
    """

    declared: Measurement
    browser_options: tuple[str, ...]
    table_options: tuple[str, ...]
    names: dict[str, str]
    filled: dict[str, str]
    keys: dict[str, str]
    quantiles: dict[str, tuple[float, ...]]

    @property
    def file(self) -> bytes:
        """The file of `task create --measurement`."""
        return json.dumps(json.loads(encode(self.declared)), indent=2).encode() + b"\n"

    @property
    def query_options(self) -> tuple[str, ...]:
        """The options of `adserver aggregate`: all sums and the count, by all keys, with their totals."""
        summed = [part for name in (*self.names, COUNT) for part in ("--value", name)]
        counted = [part for name in self.quantiles for part in ("--histogram", name)]
        return (*summed, *counted, *(("--group-by", ",".join(self.keys), "--roll-up") if self.keys else ()))

    def without_histograms(self, result: AggregateResult) -> AggregateResult:
        """Return a result without its histograms: `read_quantiles` says what they were asked for."""
        sums = [place for place, column in enumerate(result.columns) if column.bucket is None]
        return replace(
            result,
            columns=tuple(result.columns[place] for place in sums),
            rows=tuple(
                replace(row, estimates=tuple(row.estimates[place] for place in sums)) for row in result.rows
            ),
        )

    def read_quantiles(self, result: AggregateResult) -> dict[str, list[Estimate]]:
        """Return each quantile of each row of an answer, by its name.

        Of a column with gaps it is over the rows that have a number, as a mean is.
        """
        return {
            self.name_quantile(name, share): [
                one for _, one in result.quantiles(name, share, self._count_of(name))
            ]
            for name, shares in self.quantiles.items()
            for share in shares
        }

    def name_quantile(self, value: str, share: float) -> str:
        """Return what results call a quantile of a declared value."""
        name = self.names[value]
        return f"quantile {share:g} of {name}" + (f" over {self.filled[name]}" if name in self.filled else "")

    def _count_of(self, value: str) -> str:
        """Return the declared value that counts the rows with a declared value; count if all have it."""
        return filled_name(value, self.declared.values) or COUNT


def parse_value(table: Table, column: str) -> Measured:
    """Return a measured column, or COLUMN==WORD where no column has that name.

    Raises:
        InvalidTask: the word is missing.
    """
    name, is_word, word = (column, "", "") if column in table.columns else column.partition("==")
    if is_word and not word:
        raise InvalidTask(
            f"[measure] values names {column!r}, in which no word follows ==: to count the rows with a word, "
            f"write it there; to add up the column, write {name!r}; rows without a cell are counted with it"
        )
    return Measured(column=name, word=word) if is_word else Measured(column=column)


def group_rows(table: Table, plan: MeasurementPlan) -> list[tuple[str, ...]]:
    """Return each row's category of each key, as browsers report it."""
    names = [
        [OTHER if cell is None or (word := _spell(cell)) not in categories else word for cell in column]
        for column, categories in (
            (table.columns[column], frozenset(key.categories or ()))
            for column, key in zip(plan.keys.values(), plan.declared.keys, strict=True)
        )
    ]
    return list(zip(*names, strict=True)) if names else [()] * len(table)


def read_numbers(table: Table, value: Measured | None) -> list[float]:
    """Return what each row adds to a value's sums if nothing is cut off; to the count, None, it adds 1."""
    if value is None:
        return [1.0] * len(table)
    if value.word:
        return [float(cell == value.word) for cell in table.columns[value.column]]
    return [one or 0.0 for one in parse_numbers(table, value.column)]


def cut_off(numbers: Sequence[float], most: float) -> list[float]:
    """Return of each number what lies beyond the most that counts, with its sign."""
    return [one - max(-most, min(most, one)) for one in numbers]


def numbers_by_level(
    table: Table, plan: MeasurementPlan, value: Measured | None
) -> list[dict[tuple[str, ...], list[float]]]:
    """Return `read_numbers` of each group that is shown: of all rows, by the first key, and so on.

    A level of which no group is shown is empty; the first has all rows.
    """
    numbers, rows = read_numbers(table, value), group_rows(table, plan)
    levels: list[dict[tuple[str, ...], list[float]]] = [{(): numbers}]
    for level in range(1, len(plan.keys) + 1):
        found = dict[tuple[str, ...], list[float]]()
        for group, one in zip(rows, numbers, strict=True):
            found.setdefault(group[:level], []).append(one)
        levels.append({group: of for group, of in found.items() if len(of) >= MIN_CELL_COUNT})
    return levels


def describe_gaps(table: Table, data: DataSettings, measure: MeasureSettings) -> tuple[str, ...]:
    """Say how many of the rows whose label is learned have no cell in a measured column, and what follows."""
    gaps = _count_gaps(table, data, measure)
    if not gaps:
        return ()
    rows, _ = count_rows(table, data)
    return tuple(
        f"of {plural(rows, 'row')}, {plural(count, 'has', 'have')} no {column!r}: such a row is "
        "reported, counts in groups, and adds 0 to its sums; the mean is over the others, whose count takes "
        "a part of epsilon and so widens intervals"
        for column, count in gaps.items()
    )


def describe_rest(table: Table, plan: MeasurementPlan) -> tuple[str, ...]:
    """Say of each key how many of the table's rows are in its group `other`: with which words, or none."""
    told = []
    for column, key in zip(plan.keys.values(), plan.declared.keys, strict=True):
        cells = [None if cell is None else _spell(cell) for cell in table.columns[column]]
        known = frozenset(key.categories) - {OTHER}
        rare = Counter(cell for cell in cells if cell is not None and cell not in known)
        parts = []
        if rare:
            shown = ", ".join(repr(word) for word, _ in rare.most_common(_MOST_WORDS))
            parts.append(
                f"{rare.total()} with {plural(len(rare), *_WORDS_ALONE)} "
                f"({shown}{', ...' if len(rare) > _MOST_WORDS else ''})"
            )
        if gaps := cells.count(None):
            parts.append(f"{gaps} with a gap")
        if parts:
            told.append(f"{column!r}: {OTHER!r} has, of {plural(len(table), 'row')}, {' and '.join(parts)}")
    return tuple(told)


def plan_measurement(table: Table, data: DataSettings, measure: MeasureSettings) -> MeasurementPlan | None:
    """Return what is measured, or None where `[measure]` names nothing.

    Raises:
        InvalidTask: a column is missing, is named twice, or holds no numbers where they are summed, or
            identifiers; or a key is secret.
    """
    if not measure.is_asked:
        return None
    for wrong in find_wrong_names(measure, data):
        raise InvalidTask(wrong)
    # A row of a result has other things under the last two
    taken = {COUNT, GROUP, MAY_BE_HIDDEN}
    with_gaps = [*_count_gaps(table, data, measure)]
    titles = _titles((*taken, *map(_read_as, measure.values), *(f"rows with {one}" for one in with_gaps)))
    of_both = titles[len(taken) :]
    of_values, of_gaps = of_both[: len(measure.values)], of_both[len(measure.values) :]
    of_keys = _titles(measure.keys)
    # A title of one value is no name of another
    taken |= {*titles, *of_keys}
    declared_as, columns = _name_values(measure.values, of_values, with_gaps, taken)
    values = [
        _plan_value(table, one, title, name)
        for one, title, name in zip(measure.values, of_values, declared_as, strict=True)
    ]
    counts = {
        column: _count_filled(column, columns[column], title)
        for column, title in zip(with_gaps, of_gaps, strict=True)
    }
    filled = {one.title: counts[one.column].title for one in values if one.column in counts}
    values += counts.values()
    names = {one.name: one.title for one in values}
    keys = {
        _name(column, taken, title): (column, title)
        for column, title in zip(measure.keys, of_keys, strict=True)
    }
    declared = {
        "min_cell_count": MIN_CELL_COUNT,
        "values": [
            {
                "name": one.name,
                "low": one.low,
                "high": one.high,
                "is_clamped": not one.is_word,
                "bucket_starts": one.bucket_starts,
                "title": _other_than(one.name, one.title),
                "parts_per_unit": one.unit,
            }
            for one in values
        ],
        "keys": [
            {"name": name, "title": _other_than(name, title), **_categories(table, column, data)}
            for name, (column, title) in keys.items()
        ],
    }
    secret = tuple(part for one in values for part in ("--value", f"{one.name}={one.read_as}"))
    return MeasurementPlan(
        declared=build(Measurement, declared),
        browser_options=(
            *secret,
            *(part for name, (column, _) in keys.items() for part in ("--key", f"{name}={column}")),
            *(("--gaps-as-zero",) if filled else ()),
        ),
        table_options=secret,
        names=names,
        filled=filled,
        keys={name: column for name, (column, _) in keys.items()},
        quantiles={one.name: one.quantiles for one in values if one.quantiles},
    )


@frozen
class _PlannedValue:
    """A value as the task declares it: its bounds, in units of which its column's own has `unit`.

    A word is in a row or is not, so that no bound cuts off its count.
    """

    name: str
    column: str
    title: str
    read_as: str
    low: int
    high: int
    unit: int
    is_word: bool = False
    quantiles: tuple[float, ...] = ()

    @property
    def bucket_starts(self) -> tuple[int, ...]:
        """Where buckets begin, if quantiles are asked for: by the bounds alone, since a task is public.

        Each bucket is as wide as a fixed share of its start; 0 has its own, and so has the most, which also
        holds what is clipped to it. Below 0 they mirror those above.
        """
        if not self.quantiles:
            return ()
        starts = {round(self.high / _BUCKET_RATIO**step) for step in range(_MOST_BUCKETS)}
        above = sorted(starts - {0} | {1})
        return (*([self.low, *(1 - one for one in above[:0:-1])] if self.low else []), 0, *above)


def _read_as(one: Measured) -> str:
    return f"{one.column}=={one.word}" if one.word else one.column


def _titles(names: Iterable[str]) -> list[str]:
    """Return columns' names as a task may have them for titles, which differ."""
    printed = ("".join(letter if letter.isprintable() else " " for letter in name) for name in names)
    return distinct_names(name[:_MOST_OF_TITLE] for name in printed)


def _other_than(name: str, title: str) -> str | None:
    return None if title in ("", name) else title


def _count_gaps(table: Table, data: DataSettings, measure: MeasureSettings) -> dict[str, int]:
    """Return how many rows have no cell in each measured column, where any of them has none.

    Of the rows whose label is learned: no other one is reported.
    """
    columns = {one.column for one in measure.values if None in table.columns.get(one.column, ())}
    if not columns:
        return {}
    learned = [not why for why in why_not_learned(table, data)]
    gaps = {
        one.column: sum(cell is None for cell in compress(table.columns[one.column], learned))
        for one in measure.values
        if one.column in columns
    }
    return {column: count for column, count in gaps.items() if count}


def _name_values(
    values: Sequence[Measured], titles: Sequence[str], with_gaps: Collection[str], taken: set[str]
) -> tuple[list[str], dict[str, str]]:
    """Return each value's name, and that of each column with gaps, by which its values find its count."""
    own = {one.column: title for one, title in zip(values, titles, strict=True) if not one.word}
    names, columns = list[str](), dict[str, str]()
    for one, title in zip(values, titles, strict=True):
        if one.column not in with_gaps:
            names.append(_name(one.word or one.column, taken, title))
            continue
        if one.column not in columns:
            columns[one.column] = _name(one.column, taken, own.get(one.column, ""))
        column = columns[one.column]
        names.append(_number(word_name_of(column, one.word), taken, title) if one.word else column)
    return names, columns


def _plan_value(table: Table, one: Measured, title: str, name: str) -> _PlannedValue:
    if one.word:
        _check_column(table, one.column, "values")
        if one.word not in table.columns[one.column]:
            why = "" if said(one.word) else ": it is an empty cell; to count those, write a word in the table"
            raise InvalidTask(f"[measure] values: no row of column {one.column!r} has {one.word!r}{why}")
        return _PlannedValue(
            name=name,
            column=one.column,
            title=title,
            read_as=_read_as(one),
            low=0,
            high=1,
            unit=1,
            is_word=True,
        )
    filled = [value for value in parse_numbers(table, one.column) if value is not None]
    if not filled:
        raise InvalidTask(f"[measure] values: column {one.column!r} is empty: measure another one")
    unit = 10 ** _decimals(table, one.column, one.bound)
    # In decimals: as floats 1.1 times 100 is a little more than 110, and would be rounded up to 111.
    high = math.ceil(Decimal(repr(one.bound)) * unit)
    if high > MAX_MAGNITUDE:
        raise InvalidTask(
            f"[measure] values: {one.bound:g} of {one.column!r} is more than {MAX_MAGNITUDE / unit:g}, the "
            f"most at so many decimals: {_how_to_round(table, one.column)}"
        )
    return _PlannedValue(
        name=name,
        column=one.column,
        title=title,
        read_as=f"{one.column}*{unit}" if unit > 1 else one.column,
        low=-high if min(filled) < 0 else 0,
        high=high,
        unit=unit,
        quantiles=one.quantiles,
    )


def _count_filled(column: str, name: str, title: str) -> _PlannedValue:
    """Return the value that counts the rows in which a column is not empty."""
    return _PlannedValue(
        name=filled_name_of(name),
        column=column,
        title=title,
        read_as=f"{column}!=",
        low=0,
        high=1,
        unit=1,
        is_word=True,
    )


def find_wrong_names(measure: MeasureSettings, data: DataSettings) -> Iterator[str]:
    """Yield what is named twice or asked of a word, and secret keys: helpers and the ad server see keys."""
    values = [f"{one.column}=={one.word}" if one.word else one.column for one in measure.values]
    for setting, names in (("values", values), ("keys", measure.keys)):
        for name, times in Counter(names).items():
            if times > 1:
                yield f"[measure] {setting} names {name!r} twice: keep one of them"
    for one in measure.values:
        if one.word and one.quantiles:
            yield (
                f"[measure] values: {one.column!r} counts {one.word!r} and has quantiles, which are of "
                "numbers: leave them out, or name a column of numbers"
            )
        if len({*one.quantiles}) < len(one.quantiles):
            yield f"[measure] values: {one.column!r} names a quantile twice: keep one of them"
    secret = {one.column for one in measure.values} | ({data.label} - {""})
    for column in measure.keys:
        if column in secret:
            yield (
                f"[measure] keys names {column!r}, which is the label or a measured column and so secret, "
                "while keys are not: group by another column"
            )


def parse_numbers(table: Table, column: str) -> list[float | None]:
    """Return a column's numbers, None for gaps; yes and true are 1, no and false are 0."""
    _check_column(table, column, "values")
    cells = table.numbers(column)
    numbers: list[float | None] = []
    for line, cell in zip(table.lines, cells, strict=True):
        if cell is None:
            numbers.append(None)
            continue
        value = float(cell.lower() in ("yes", "true")) if cell.lower() in _TRUTHS else number(cell)
        if value is None:
            raise InvalidTask(f"[measure] values: column {column!r} {_why_no_numbers(cells, column, line)}")
        numbers.append(value)
    return numbers


def _why_no_numbers(cells: Cells, column: str, line: int) -> str:
    """Say which words stand where numbers are summed, and how to count one."""
    counts = Counter(cell for cell in cells if cell is not None)
    words = Counter({cell: count for cell, count in counts.items() if number(cell) is None})
    if words.total() <= counts.total() / 2:
        return (
            f"holds numbers, and {plural(words.total(), 'word')}, the first in line {line}: empty those "
            "cells, or name a column of numbers"
        )
    if told := describe_units(counts):
        return f"holds {told}"
    shown = ", ".join(f"{word!r} in {plural(count, 'row')}" for word, count in words.most_common(_MOST_WORDS))
    # As of labels: people count what is rare
    word = min(words.most_common(_MOST_WORDS), key=lambda one: one[1])[0]
    return (
        f"holds words, {shown}{', ...' if len(words) > _MOST_WORDS else ''}: to count one, write "
        f"{_spell_count(column, word)}; to sum, name a column of numbers"
    )


def _spell_count(column: str, word: str) -> str:
    """Return how the rows with a word are counted: as an option, and in `lark.toml`."""
    name, counted = (json.dumps(one, ensure_ascii=False) for one in (column, word))
    option = shlex.quote(f"{column}=={word}")
    return f"--value {option}, in lark.toml {{column = {name}, word = {counted}}}"


def _decimals(table: Table, column: str, most: float) -> int:
    """Return how many decimals a column has."""
    cells = {cell for cell in table.numbers(column) if cell is not None and cell.lower() not in _TRUTHS}
    exponents = [Decimal(cell).normalize().as_tuple().exponent for cell in (*cells, repr(most))]
    decimals = max((-int(one) for one in exponents), default=0)
    if decimals > MOST_DECIMALS:
        raise InvalidTask(
            f"[measure] values: column {column!r} has {decimals} decimals: round it to {MOST_DECIMALS} or "
            "fewer"
        )
    return max(decimals, 0)


def _how_to_round(table: Table, column: str) -> str:
    """Say what to do about a column's decimals: if few rows have so many, which."""
    cells = [
        ("" if cell is None or cell.lower() in _TRUTHS else cell, line)
        for cell, line in zip(table.numbers(column), table.lines, strict=True)
    ]
    decimals = [-int(Decimal(cell).normalize().as_tuple().exponent) if cell else 0 for cell, _ in cells]
    finest = [cells[place] for place, count in enumerate(decimals) if count == max(decimals)]
    if len(finest) > _MOST_WORDS or max(decimals) <= 0:
        return "round the column"
    shown = ", ".join(f"{cell} in line {line}" for cell, line in finest)
    rows = plural(len(finest), "row alone has", "rows alone have")
    return f"round the column, in which {rows} so many ({shown})"


def _categories(table: Table, column: str, data: DataSettings) -> dict[str, object]:
    """Return a key's categories: the words of enough rows by number or alphabet, and one for the rest.

    A task is public: an order by rows would say of each two words which is in more.

    Without gaps and rare words there is no rest, which would be an empty row of each group.
    """
    _check_column(table, column, "keys")
    cells = table.columns[column]
    found = None if column in data.publish else why_private(column, cells)
    if found and are_dates(cells):
        raise InvalidTask(
            f"[measure] keys: column {column!r} has dates ({found}), of which each would be a group: add a "
            "column with the month, the week or the day to the table, and name that one"
        )
    if found:
        raise InvalidTask(
            f"[measure] keys: column {column!r} looks like identifiers ({found}), and a task is public: name "
            "another one, or name it in [data] publish"
        )
    spelled = [None if cell is None else _spell(cell) for cell in cells]
    counts = Counter(cell for cell in spelled if cell is not None)
    large = [word for word, count in counts.most_common(MOST_CATEGORIES) if count >= MIN_CELL_COUNT]
    # A word that is spelled like the rest is counted there, and one that no task takes, too.
    if taken := NO_WORDS.intersection(large):
        raise InvalidTask(
            f"[measure] keys: column {column!r} has the word {min(taken)!r}, which results write in place of "
            "one: write another word in the table"
        )
    words = sorted((word for word in large if word != OTHER and len(word) <= MAX_WORD), key=order_of)
    if not words:
        if told := describe_long_words(table, column):
            raise InvalidTask(f"[measure] keys: {told}")
        raise InvalidTask(
            f"[measure] keys: no word of column {column!r} is in {MIN_CELL_COUNT} rows, and smaller groups "
            "are hidden: name a coarser column"
        )
    categories = words if set(words).issuperset(spelled) else [*words, OTHER]
    return {"size": len(categories), "categories": categories}


def describe_long_words(table: Table, column: str) -> str:
    """Say which words of a key are too long for groups of their own, and what to do; empty if none is."""
    counts = Counter(cell for cell in table.columns[column] if cell is not None and len(cell) > MAX_WORD)
    long = {word: count for word, count in counts.most_common(_MOST_WORDS) if count >= MIN_CELL_COUNT}
    if not long:
        return ""
    shown = ", ".join(
        f"{word[:_SHOWN_OF_WORD] + '...'!r} of {len(word)} characters in {plural(count, 'row')}"
        for word, count in long.items()
    )
    return (
        f"column {column!r} has {shown}: a group's word has at most {MAX_WORD} characters, and longer ones "
        f"are in {OTHER!r}; shorten it in the table"
    )


def _spell(cell: str) -> str:
    """Return a key's cell in the spelling in which browsers look it up."""
    return cell.removesuffix(".0")


def _check_column(table: Table, column: str, setting: str) -> None:
    if column in table.columns:
        return
    if setting == "values" and column == COUNT:
        raise InvalidTask(
            f"[measure] values names {COUNT!r}, but {table.name} has no such column, and the counts of rows "
            "are always there: leave it out"
        )
    name, _, word = column.partition("=")
    if setting == "values" and word and name in table.columns:
        raise InvalidTask(
            f"[measure] values names {column!r}, which is no column: to count a word's rows, write "
            f"{_spell_count(name, word.lstrip('='))}"
        )
    raise InvalidTask(
        f"[measure] {setting} names {column!r}, but {table.name} has no such column; "
        f"{list_known(column, table.columns)}"
    )


def _name(column: str, taken: set[str], title: str) -> str:
    """Return a column's or word's name as a task may declare it, and add it to those that are taken."""
    return _number(plain_name(column), taken, title)


def _number(plain: str, taken: set[str], title: str) -> str:
    """Return a name with a number if it is taken, and add it to those that are.

    The name of its count is taken with it, so that no other column is read as the count. Of titles only its
    own may be the name.
    """
    others = taken - {title}
    names = (numbered_name(plain, number) for number in range(1, 1_000))
    name = next(one for one in names if others.isdisjoint((one, filled_name_of(one))))
    taken.update((name, filled_name_of(name)))
    return name


def round_up(value: float) -> float:
    """Return the least number of two digits that is no smaller."""
    digits = 1 - math.floor(math.log10(value))
    # Without `round`, .14 would become .15: as floats .14 times 100 is a little more than 14.
    if digits > 0:
        return math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits
    # In integers: 10.0**-5 is not exact, and 36 over it is 3599999.9999999995
    return float(math.ceil(round(value / 10**-digits, 6)) * 10**-digits)


def largest_bound(table: Table, column: str) -> float:
    """Return the largest bound of two digits that a task takes of a column with these decimals."""
    step: int = 10 ** (len(str(MAX_MAGNITUDE)) - 2)
    unit: int = 10 ** _decimals(table, column, 1.0)
    return MAX_MAGNITUDE // step * step / unit
