"""Rows of one's own, as they are, scored by an exported model.

    from adserver import predict

    job.calibrate("income.onnx", panel="panel.npz", takes="columns")
    chances = predict("income.onnx", frame)          # also a list of dicts, or the path of a CSV file

The rows are read, encoded and scored as by `adserver model predict`. No ad server is asked.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.client.choices import choose
from adserver.client.tasks import read_encoder_of
from adserver.training.model_file import read_model
from adserver.training.scoring import check_columns, find_encoder, score_table
from maskedlark.encoding.cells import Cells, number, said
from maskedlark.encoding.dates import part_of
from maskedlark.encoding.encoder import Encoder, NumberColumn
from maskedlark.encoding.table import Table, parse_table
from maskedlark.encoding.written_numbers import read_each_amount
from maskedlark.errors import InvalidTask
from maskedlark.model.losses import Loss
from maskedlark.terminal.plural import plural

_TRUTH: Final = {"true": 1.0, "false": 0.0}
# Floats hold each whole number up to here.
_WHOLE: Final = 1 << 53
# By encoder, what and column, the shares of unknown words and gaps that were warned of, in hundredths.
_TOLD: Final = set[tuple[bytes, str, str, float]]()


def predict(
    model: bytes | str | Path,
    rows: Any,
    *,
    encoder: Encoder | Mapping[str, Any] | str | Path | None = None,
    loss: str | None = None,
) -> NDArray[np.float64]:
    """Return an exported model's prediction for each row.

    Of two classes that is the chance of class 1, and of more the chance of each; of numbers the number; of a
    file that does not say its loss the outputs. Words that the encoder does not name are scored as `other`,
    and a warning counts them, when their share of a column is a new one in this process; so are gaps, where
    the encoder was fitted to none or where most of ten rows or more have one. Another names the
    currency or % of amounts, which the encoder does not know, and another the columns that only some of the
    dicts have, and how many lack them: those cells are gaps.

    Args:
        model: The ONNX file that `export` or `calibrate` of a job made, or its bytes.
        rows: A pandas or polars frame, a list of dicts, one dict for one row, or the path of a CSV file. The
            columns that the encoder reads are needed, others are ignored: dates as one column, as they are
            written or as dates; cells without a value None, NaN or empty. Numbers that are text are each read
            by themselves: they may have a currency or %, and a decimal comma that cannot part thousands (2,5
            but not 1,234), while 1.234 has decimals. A cell of another currency than most of its column
            cannot be read.
        encoder: The encoder that the model was trained with, or its file; not needed for a model that was
            exported with takes="columns".
        loss: What the model was trained with, for a file that does not say it.

    Returns:
        Shape (rows,) if a prediction is one number, else (rows, numbers). A row that cannot be read has NaN,
        and a warning says why.

    Raises:
        InvalidTask: rows are of another kind or lack a column, or there is no encoder or a wrong one.
        InvalidModel: the model cannot be run, or its outputs are not those of the loss.
    """
    encoded = model if isinstance(model, bytes) else read_model(Path(model))
    found = find_encoder(encoded, read_encoder_of(encoder))
    table, lacking = _read_rows(rows, found)
    scored = score_table(encoded, found, table, None if loss is None else choose(Loss, "loss", loss))
    unknown = tuple(
        one for one in scored.unknown if _is_news(found, "words", one.column, one.rows / len(table))
    )
    gaps = tuple(one for one in scored.gaps if _is_news(found, "gaps", one.column, one.rows / one.of))
    if remarks := [*lacking, *replace(scored, unknown=unknown, gaps=gaps).remarks()]:
        warnings.warn("; ".join(remarks), stacklevel=2)
    nothing = (np.nan,) * len(scored.columns)
    numbers = [nothing if one is None else one for one in scored.rows]
    values = np.array(numbers, np.float64).reshape(len(table), len(scored.columns))
    return values[:, 0] if values.shape[1] == 1 else values


def _is_news(encoder: Encoder, what: str, column: str, share: float) -> bool:
    """Return whether this process has not been told yet of such a share of `what` in a column.

    A model that is used again and again on the same rows, or row by row, has the same of them each time.
    """
    told = (encoder.digest, what, column, round(share, 2))
    if told in _TOLD:
        return False
    _TOLD.add(told)
    return True


def _read_rows(rows: Any, encoder: Encoder) -> tuple[Table, list[str]]:
    """Return the columns of rows that an encoder reads, with the cells that a CSV file of them has.

    The second is a remark if some of several dicts lack columns that others have.
    """
    if isinstance(rows, str | Path):
        return parse_table(Path(rows).read_bytes(), Path(rows).name, are_short_rows_kept=True), []
    wanted = {column.name: column.words for column in encoder.columns}
    dates = {of: () for name in wanted if (of := part_of(name)) is not None}
    held, count, lacking = _columns(rows, [*wanted, *dates], partial(check_columns, encoder, "rows"))
    columns: dict[str, Cells] = {
        name: _cells(held[name], words) for name, words in {**dates, **wanted}.items() if name in held
    }
    # Of a CSV file's rows as dicts, numbers are text as it was written
    amounts = {
        column.name: read_each_amount(columns[column.name])
        for column in encoder.columns
        if isinstance(column, NumberColumn) and column.name in columns
    }
    named = ", ".join(f"{name!r} ({plural(rows, 'row')})" for name, rows in lacking.items())
    remarks = [f"columns that only some dicts have are gaps in the others: {named}"] if lacking else []
    return Table(name="rows", columns=columns, lines=range(1, count + 1), amounts=amounts), remarks


def _columns(
    rows: Any, wanted: Sequence[str], check: Callable[[Collection[str]], None]
) -> tuple[dict[str, Sequence[Any]], int, dict[str, int]]:
    """Return columns of values by name, how many rows there are, and of how many dicts a column is absent.

    `check` gets the names of all columns, also of those that are not wanted.
    """
    if hasattr(rows, "columns") and hasattr(rows, "__getitem__"):
        # As in the header of a CSV file, space around a name is none of it
        names = {str(name).strip(): name for name in rows.columns}
        if len(names) != len(rows.columns):
            raise InvalidTask("two columns of the frame have one name: give them distinct names")
        check(names)
        return {name: rows[names[name]].to_list() for name in wanted if name in names}, len(rows), {}
    if not isinstance(rows, Iterable) or isinstance(rows, bytes):
        raise _reject_rows("rows are", rows)
    if isinstance(rows, Mapping):
        if long := [str(name) for name, cell in rows.items() if _has_cells(cell)]:
            raise InvalidTask(
                f"rows are a dict with several cells of {long[0]!r}: a dict is one row; use a frame"
            )
        rows = [rows]
    listed = list(rows)
    for place, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise _reject_rows(f"row {place} is", row)
    there = dict.fromkeys(name for row in listed for name in row) if listed else dict.fromkeys(wanted)
    check(there)
    found: dict[str, Sequence[Any]] = {
        name: [row.get(name) for row in listed] for name in wanted if name in there
    }
    absent = {name: sum(name not in row for row in listed) for name in found}
    return found, len(listed), {name: rows for name, rows in absent.items() if rows}


def _has_cells(cell: object) -> bool:
    return not isinstance(cell, str | bytes) and (hasattr(cell, "__len__") or hasattr(cell, "__iter__"))


def _reject_rows(what: str, given: object) -> InvalidTask:
    return InvalidTask(
        f"{what} of type {type(given).__name__}: expected a pandas or polars frame, a list of dicts, or the "
        "path of a CSV file"
    )


def _cells(values: Sequence[Any], words: Sequence[str]) -> Cells:
    """Return the values of a column as cells, spelled as the encoder's words are."""
    are_numbers = bool(words) and any(isinstance(value, Real | Decimal | np.bool_) for value in values)
    # A frame holds the code 3 as 3.0 where the column has gaps, and true as True: neither has a spelling
    spelled = {_value(word): word for word in reversed(words)} if are_numbers else {}
    known = frozenset(words) if are_numbers else frozenset()

    def spell(text: str, value: float) -> str:
        return text if text in known else spelled.get(value, text)

    return [_cell(value, spell) for value in values]


def _value(word: str) -> float | None:
    return _TRUTH.get(word.lower(), number(word))


def _cell(value: Any, spell: Callable[[str, float], str]) -> str | None:
    """Return the cell that a CSV file has for a value; None where it has none."""
    if value is None or isinstance(value, str):
        return None if value is None else said(value)
    if isinstance(value, bool | np.bool_):
        return spell(str(bool(value)), float(value))
    if isinstance(value, Integral):
        return spell(str(int(value)), int(value))
    if isinstance(value, Real | Decimal):
        as_float = float(value)
        is_whole = as_float.is_integer() and abs(as_float) <= _WHOLE
        return None if math.isnan(as_float) else spell(str(int(as_float) if is_whole else value), as_float)
    return said(str(value))  # also NaT and <NA>, as libraries print a gap
