"""Numbers and amounts as people and spreadsheets write them.

With decimal commas, with commas, points or spaces between thousands, with a currency or %, and negative ones
in brackets. What the cells of a column mean is told from all of them, and in points and commas between
thousands from the other columns of the file.

>>> read_numbers({"a": ["1.745", "950"], "b": ["74,2", "1,5"]}, are_commas_parting=False).columns
{'a': ['1745', '950'], 'b': ['74.2', '1.5']}
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from maskedlark.encoding.cells import Cells, number
from maskedlark.frozen import frozen

# The share of filled cells that are numbers, above which a column is one of numbers
_MOSTLY: Final = 0.5
# The share of the cells that show how commas and points are meant, from which the others follow them
_CLEARLY: Final = 0.95
# Points or commas between thousands; no thousands begin with 0
_DECIMAL_COMMA: Final = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}(?:\.[0-9]{3})+|[0-9]+)(?:,[0-9]+)?")
_DECIMAL_POINT: Final = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_POINTS_OF_THOUSANDS: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")
# Of decimals, so many would all have three digits with a chance of less than 1 %
_FEWEST_POINTED: Final = 50
_SYMBOL: Final = r"[$€£¥₹%]|(?:R|A|C|US)\$"
# No letters but these, and these apart from the figures: others may be names, such as A 5 and EUR1
_LETTERS: Final = "kr|zł|Kč|AUD|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EUR|GBP|INR|JPY|MXN|NOK|NZD|PLN|SEK|USD"
_NAMED_UNIT: Final = re.compile(
    rf"(?:\b(?:R|A|C|US))?\$|{_SYMBOL}|(?<![^\W_])(?:{_LETTERS})(?![^\W_])", re.IGNORECASE
)
_CODES: Final = {
    "€": "EUR",
    "$": "USD",
    "US$": "USD",
    "£": "GBP",
    "¥": "JPY",
    "₹": "INR",
    "R$": "BRL",
    "A$": "AUD",
    "C$": "CAD",
}
_BLANK: Final = r"[ \u00a0\u202f]"
_FIGURES: Final = r"[0-9](?:[0-9.,' \u00a0\u202f\u2019]*[0-9])?"
_AMOUNT: Final = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<before>{_SYMBOL}|(?:{_LETTERS})(?={_BLANK})){_BLANK}?(?P<first>[+-]?{_FIGURES})"
    rf"|(?P<last>{_FIGURES}){_BLANK}?(?P<after>{_SYMBOL}|(?<={_BLANK})(?:{_LETTERS})))"
)
# As accounts write negative amounts: `(2.60)`, `(2,60 €)`, `€(2.60)`
_BRACKETED: Final = re.compile(
    rf"(?P<before>(?:{_SYMBOL}){_BLANK}?)?\((?P<inside>[^()+0-9-]*[0-9][^()+-]*)\)(?P<after>{_BLANK}?(?:{_SYMBOL}|{_LETTERS}))?"
)
_MINUS: Final = "\u2212"
_SPACE_OF_THOUSANDS: Final = re.compile(r"(?<=[0-9])[' \u00a0\u202f\u2019](?=[0-9]{3}(?![0-9]))")


@frozen
class Amounts:
    """A column of amounts as numbers.

    Attributes:
        unit: The currency or % that the amounts have; empty for none.
        cells: The column without it, and with decimal points.
        have_commas: Whether decimal commas were written.
        why: Why a cell is no number, by cell, where more can be said than that it is none.
    """

    unit: str
    cells: Cells = field(repr=False)
    have_commas: bool
    why: Mapping[str, str] = field(default_factory=dict, repr=False)

    def explain(self, row: int, usual: str) -> str:
        """Return why a row's cell is no number, or the usual reason if no more can be said."""
        cell = self.cells[row]
        return usual if cell is None else self.why.get(cell, usual)


@frozen
class ReadColumns:
    """Columns of a table with points in numbers where commas were, and nothing between thousands.

    Attributes:
        columns: All of them.
        written: What was read so, for people: "decimal commas", say.
        amounts: As of `Table`.
        decimal_commas: As of `Table`.
        examples: As of `Table`.
        are_commas_decimal: Whether numbers have decimal commas.
    """

    columns: Mapping[str, Cells]
    written: Sequence[str]
    amounts: Mapping[str, Amounts]
    decimal_commas: Collection[str]
    examples: Mapping[str, str]
    are_commas_decimal: bool


def read_numbers(as_written: Mapping[str, Cells], *, are_commas_parting: bool) -> ReadColumns:
    """Read the numbers of a table's columns.

    Args:
        as_written: The columns.
        are_commas_parting: Whether commas part the cells, so that there are no decimal commas.
    """
    columns, written = {**as_written}, list[str]()
    are_thousands = _show_commas_of_thousands(as_written)
    with_points = {} if are_commas_parting else dict(_with_points(columns, are_thousands))
    if with_points:
        columns |= with_points
        written.append("decimal commas")
    without_thousands = dict(_without_thousands(columns, are_thousands))
    if without_thousands:
        columns |= without_thousands
        written.append("commas between thousands")
    amounts = {one: found for one, cells in columns.items() if (found := _read_amounts(cells, are_thousands))}
    signed = dict(_with_hyphens(as_written))
    amounts |= _read_signed(signed, are_thousands, are_commas_parting=are_commas_parting)
    written += _describe_amounts(amounts, signed)
    have_commas = any(found.have_commas for found in amounts.values()) and not are_commas_parting
    if with_points or have_commas:
        # A point is none of decimals then, except where it was a comma
        read = with_points.keys() | without_thousands.keys()
        if parted := dict(_without_points({one: cells for one, cells in columns.items() if one not in read})):
            columns |= parted
            written.append("points between thousands")
    return ReadColumns(
        columns=columns,
        written=written,
        amounts=amounts,
        decimal_commas=frozenset(with_points),
        examples={
            one: find_example(as_written[one])
            for one, cells in columns.items()
            if cells is not as_written[one]
        },
        are_commas_decimal=bool(with_points) or have_commas,
    )


def _describe_amounts(amounts: Mapping[str, Amounts], signed: Collection[str]) -> Iterator[str]:
    if not amounts.keys().isdisjoint(signed):
        yield "negative numbers in brackets or with a minus sign"
    if units := dict.fromkeys(found.unit for found in amounts.values() if found.unit):
        yield f"amounts (as numbers, without {' and '.join(units)})"


def is_number_as_written(cell: str) -> bool:
    """Return True if a cell is a number, or one with a decimal comma."""
    return bool(number(cell) is not None or _DECIMAL_COMMA.fullmatch(cell))


def find_example(cells: Cells) -> str:
    """Return a column's most frequent cell, of equals the last in order; empty if all are gaps."""
    counts = Counter(cell for cell in cells if cell is not None)
    return max(counts, key=lambda cell: (counts[cell], cell), default="")


def find_other_unit(column: str, unit: str) -> str:
    """Return the unit that a column's name has, if it has one and amounts are in another; else nothing.

    >>> find_other_unit("Umsatz (€)", "$"), find_other_unit("Umsatz (€)", "EUR")
    ('€', '')
    """
    named = [found[0].upper() for found in _NAMED_UNIT.finditer(column)]
    known = {_CODES.get(one, one) for one in named}
    return "" if not named or _CODES.get(unit, unit).upper() in known else named[0]


def names_unit(column: str) -> bool:
    """Return whether a column's name has a currency or %."""
    return bool(_NAMED_UNIT.search(column))


def doubts_points(cells: Cells) -> str:
    """Return a doubt of a column of numbers that are read with decimals, and may have none; else nothing.

    Of decimals some would have fewer than three digits after the point, as one in ten numbers has that is
    written without zeros at its end.
    """
    counts = Counter(cell for cell in cells if cell is not None)
    pointed = [cell for cell in counts if "." in cell]
    is_mixed = len(pointed) < len(counts)
    if not is_mixed or len(pointed) < _FEWEST_POINTED or not _may_points_part(counts):
        return ""
    return f"points are read as decimals, as in {pointed[0]!r}: where they part thousands, remove them"


def read_amounts_of_numbers(cells: Cells, *, are_commas_decimal: bool) -> Amounts | None:
    """Read a column where an encoder reads numbers, though it is not one of amounts; None if it has none.

    Args:
        cells: The column.
        are_commas_decimal: Whether its numbers have decimal commas; else that is told from its cells.
    """
    written = cells
    if any(map(_has_other_minus, set(cells))):
        written = [None if cell is None else _use_hyphen(cell) for cell in cells]
    if written == cells and not any(
        _AMOUNT.fullmatch(cell) for cell in set(cells) if cell and number(cell) is None
    ):
        return None
    if are_commas_decimal:
        return read_each_amount(written, are_commas_decimal=True, have_numbers_points=True)
    return read_each_amount(written, are_commas_decimal=_have_mostly_decimal_commas(written))


def read_each_amount(
    cells: Cells, *, are_commas_decimal: bool | None = None, have_numbers_points: bool = False
) -> Amounts:
    """Read a column's numbers with and without a unit, each cell that can be read.

    Cells of another unit than the most frequent one are left as they are, and so are those that are no
    numbers.

    Args:
        cells: The column.
        are_commas_decimal: What commas and points are in cells where they may part thousands as well as
            decimals (`1,234`, `1.234 €`). None: these are left as they are, except numbers as
            `maskedlark.encoding.cells` reads them: 1.234.
        have_numbers_points: Whether such numbers are kept as they are in any case.

    >>> read_each_amount(["12,5 %", "1.234,50", "1,234", "1.234", "5 €", "7 %"]).cells
    ['12.5', '1234.50', '1,234', '1.234', '5 €', '7']
    """
    counts = Counter(cell for cell in cells if cell is not None)
    found = {cell: _AMOUNT.fullmatch(cell) for cell in counts if number(cell) is None}
    units = Counter[str]()
    for cell, amount in found.items():
        if amount:
            units[_unit(amount)] += counts[cell]
    ((unit, _),) = units.most_common(1) or [("", 0)]
    keeps_numbers = have_numbers_points or are_commas_decimal is None
    read, why, have_commas = dict[str, str](), dict[str, str](), False
    for cell in counts:
        amount = found.get(cell)
        if amount and (other := _unit(amount)) != unit:
            why[cell] = f"it is an amount in {other}, where the others are in {unit}"
        elif cell in found or not keeps_numbers:
            figures = _figures(amount) if amount else _SPACE_OF_THOUSANDS.sub("", cell)
            is_decimal = have_decimal_commas([figures])
            if _is_ambiguous(figures):
                is_decimal = are_commas_decimal
                if is_decimal is None:
                    why[cell] = (
                        "its points or commas may part thousands as well as decimals: write numbers as 1234.5"
                    )
            if is_decimal is not None:
                read[cell] = _write_with_point(figures, is_decimal)
                have_commas |= is_decimal and "," in figures
    return Amounts(
        unit=unit,
        cells=[None if cell is None else read.get(cell, cell) for cell in cells],
        have_commas=have_commas,
        why=why,
    )


def _show_commas_of_thousands(columns: Mapping[str, Cells]) -> bool:
    """Return whether a column shows that commas part thousands, as 1,234.50, and no cell the contrary."""
    is_shown = False
    for cells in columns.values():
        with_comma = {cell for cell in cells if cell is not None and "," in cell}
        amounts = {cell: one for cell in with_comma if (one := _AMOUNT.fullmatch(cell))}
        figures = [_figures(amounts[cell]) if cell in amounts else cell for cell in with_comma]
        if any(have_decimal_commas([one]) for one in figures):
            return False
        found = _read_amounts(cells) if amounts else None
        is_shown = is_shown or bool(_parted_by_commas(cells) if found is None else with_comma)
    return is_shown


def _with_points(columns: Mapping[str, Cells], are_thousands: bool) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the columns of numbers with decimal commas, with points instead."""
    for name, cells in columns.items():
        filled = [cell for cell in cells if cell is not None]
        # A stray word among them stays one, and costs its own row alone.
        numbers = sum(1 for cell in filled if is_number_as_written(cell))
        if (
            numbers > _MOSTLY * len(filled)
            and any("," in cell and _DECIMAL_COMMA.fullmatch(cell) for cell in filled)
            and not _parted_by_commas(cells, are_thousands)
        ):
            yield name, [None if cell is None else _use_decimal_point(cell) for cell in cells]


def _with_hyphens(columns: Mapping[str, Cells]) -> Iterator[tuple[str, Cells]]:
    """Yield the columns of numbers of which some are negative in brackets or by a minus sign, with hyphens.

    A column of nothing but numbers in brackets, such as those of notes, is none.
    """
    for name, cells in columns.items():
        if not any(map(_has_other_minus, set(cells))):
            continue
        counts = Counter(cell for cell in cells if cell is not None)
        written = {cell: _use_hyphen(cell) for cell in counts}
        numbers = sum(count for cell, count in counts.items() if _is_number_or_amount(written[cell]))
        bracketed = sum(count for cell, count in counts.items() if "(" in cell and written[cell] != cell)
        is_changed = any(cell != other for cell, other in written.items())
        if is_changed and numbers > max(_MOSTLY * counts.total(), bracketed):
            yield name, [None if cell is None else written[cell] for cell in cells]


def _read_signed(
    signed: Mapping[str, Cells], are_thousands: bool, *, are_commas_parting: bool
) -> Iterator[tuple[str, Amounts]]:
    """Yield the columns with hyphens as numbers; none of those of several units, or with and without one.

    Args:
        signed: The columns.
        are_thousands: As of `_parted_by_commas`.
        are_commas_parting: Whether commas part the cells, so that there are no decimal commas.
    """
    with_points = {} if are_commas_parting else dict(_with_points(signed, are_thousands))
    read: dict[str, Cells] = {**signed, **with_points}
    read |= dict(_without_thousands(read, are_thousands))
    for name, cells in read.items():
        if found := _read_amounts(cells, are_thousands):
            yield name, found
        elif not any(_AMOUNT.fullmatch(cell) for cell in set(cells) if cell is not None):
            yield name, Amounts(unit="", cells=cells, have_commas=name in with_points)


def _has_other_minus(cell: str | None) -> bool:
    """Return whether a cell is perhaps a negative number without a hyphen."""
    return cell is not None and ("(" in cell or _MINUS in cell)


def _use_hyphen(cell: str) -> str:
    """Return a negative number with a hyphen, and any other cell as it is.

    >>> [_use_hyphen(cell) for cell in ("(2.60)", "(93,62 €)", "\u22125", "(see below)")]
    ['-2.60', '-93,62 €', '-5', '(see below)']
    """
    text = cell.replace(_MINUS, "-")
    if found := _BRACKETED.fullmatch(text):
        text = f"-{found['before'] or ''}{found['inside']}{found['after'] or ''}"
    return text if _is_number_or_amount(text) else cell


def _is_number_or_amount(cell: str) -> bool:
    return is_number_as_written(cell) or bool(_DECIMAL_POINT.fullmatch(cell) or _AMOUNT.fullmatch(cell))


def _without_thousands(
    columns: Mapping[str, Cells], are_thousands: bool
) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the columns of numbers with commas between thousands, without these."""
    for name, cells in columns.items():
        if parted := _parted_by_commas(cells, are_thousands):
            yield name, [cell.replace(",", "") if cell in parted else cell for cell in cells]


def _parted_by_commas(cells: Cells, are_thousands: bool = False) -> frozenset[str]:
    """Return the numbers of a column with commas between thousands: 1,234 too, if one is like 5,001.23.

    None where none is like that, where one is like 0,5, or where numbers are not most cells.

    Args:
        cells: The column.
        are_thousands: Whether the file shows that of commas, so that no number need be like that.
    """
    counts = Counter(cell for cell in cells if cell is not None)
    parted = frozenset(cell for cell in counts if "," in cell and _DECIMAL_POINT.fullmatch(cell))
    if not are_thousands and not any("." in cell for cell in parted):
        return frozenset()
    numbers = [cell for cell in counts if cell in parted or is_number_as_written(cell)]
    if sum(counts[cell] for cell in numbers) <= _MOSTLY * counts.total():
        return frozenset()
    return parted if all(map(_DECIMAL_POINT.fullmatch, numbers)) else frozenset()


def _without_points(columns: Mapping[str, Cells]) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the columns of numbers with points between thousands, without these."""
    for name, cells in columns.items():
        counts = Counter(cell for cell in cells if cell is not None)
        if _may_points_part(counts):
            yield name, [None if cell is None else _join_thousands(cell) for cell in cells]


def _may_points_part(counts: Counter[str]) -> bool:
    """Return whether each point of a column of numbers may part thousands, and there are such.

    >>> [_may_points_part(Counter(cells)) for cells in (["1.745", "950"], ["1.745", "9.5"], ["0.250"])]
    [True, False, False]
    """
    numbers = [cell for cell in counts if number(cell) is not None or _POINTS_OF_THOUSANDS.fullmatch(cell)]
    pointed = [cell for cell in numbers if "." in cell]
    return (
        bool(pointed)
        and all(map(_POINTS_OF_THOUSANDS.fullmatch, pointed))
        and sum(counts[cell] for cell in numbers) > _MOSTLY * counts.total()
    )


def _join_thousands(cell: str) -> str:
    return cell.replace(".", "") if _POINTS_OF_THOUSANDS.fullmatch(cell) else cell


def _read_amounts(cells: Cells, are_thousands: bool = False) -> Amounts | None:
    """Read a column whose numbers all have one and the same unit; None for others.

    As of decimal commas, a stray word stays one. Numbers without a unit, or points and commas that may part
    thousands as well as decimals, are not guessed at: the column stays as it is.

    Args:
        cells: The column.
        are_thousands: Whether the file shows that commas part thousands.
    """
    first = next((cell for cell in cells if cell is not None), None)
    if first is None or is_number_as_written(first):  # most columns, without a look at each cell
        return None
    counts = Counter(cell for cell in cells if cell is not None)
    found = {cell: one for cell in counts if (one := _AMOUNT.fullmatch(cell))}
    units = set(map(_unit, found.values()))
    rows = sum(counts[cell] for cell in found)
    if len(units) != 1 or rows <= _MOSTLY * counts.total() or any(map(is_number_as_written, counts)):
        return None
    figures = {cell: _figures(one) for cell, one in found.items()}
    are_commas_decimal = have_decimal_commas(figures.values())
    if are_commas_decimal is None:
        if not are_thousands or not all(map(_DECIMAL_POINT.fullmatch, figures.values())):
            return None
        are_commas_decimal = False
    read = {cell: _write_with_point(one, are_commas_decimal) for cell, one in figures.items()}
    return Amounts(
        unit=units.pop(),
        cells=[None if cell is None else read.get(cell, cell) for cell in cells],
        have_commas=are_commas_decimal and any("," in one for one in figures.values()),
    )


def _have_mostly_decimal_commas(cells: Cells) -> bool | None:
    """Return whether nearly all cells that show it have decimal commas, or points; None for neither."""
    shown, plain = Counter[bool | None](), 0
    for cell, count in Counter(cell for cell in cells if cell is not None).items():
        amount = _AMOUNT.fullmatch(cell)
        figures = _figures(amount) if amount else _SPACE_OF_THOUSANDS.sub("", cell)
        if amount is None and "." in cell and is_number_as_written(cell):
            plain += count
        if "," in figures or "." in figures:
            shown[have_decimal_commas([figures])] += count
    del shown[None]
    ((is_decimal, count),) = shown.most_common(1) or [(None, 0)]
    # A few amounts with commas make no thousands of a column of 1.234
    is_outnumbered = bool(is_decimal) and plain > shown.total()
    return None if is_outnumbered or count < _CLEARLY * shown.total() else is_decimal


def _unit(amount: re.Match[str]) -> str:
    return amount["before"] or amount["after"]


def _figures(amount: re.Match[str]) -> str:
    """Return an amount's sign and figures, with nothing but points and commas among them."""
    return _SPACE_OF_THOUSANDS.sub("", amount["sign"] + (amount["first"] or amount["last"]))


def _write_with_point(figures: str, are_commas_decimal: bool) -> str:
    return _use_decimal_point(figures) if are_commas_decimal else figures.replace(",", "")


def have_decimal_commas(numbers: Collection[str]) -> bool | None:
    """Return whether numbers have decimal commas or points; None if nothing shows it or some have others."""
    with_comma = all(_DECIMAL_COMMA.fullmatch(one) for one in numbers)
    with_point = all(_DECIMAL_POINT.fullmatch(one) for one in numbers)
    if with_comma and with_point:
        # 1.234 is either, and 1234 the same in both
        return None if any("." in one or "," in one for one in numbers) else False
    return with_comma if with_comma or with_point else None


def _is_ambiguous(figures: str) -> bool:
    """Return whether points or commas may part thousands as well as decimals."""
    is_either = _DECIMAL_COMMA.fullmatch(figures) and _DECIMAL_POINT.fullmatch(figures)
    return bool(is_either) and have_decimal_commas([figures]) is None


def _use_decimal_point(cell: str) -> str:
    return cell.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell
