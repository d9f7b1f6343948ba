"""Writes vectors.json: encoders, cells and their bytes, for other languages.

`python -m tests.vectors.encoder.generate`.

Each case holds an encoder's canonical bytes as text, its digest in hex, cells as they stand in a file, and
for each row the bytes of its features and its label. A refused case holds the column and the row of the first
cell that the encoder does not read. `digest` is SHA-256 of "maskedlark/v1 encoder", the length of the
canonical bytes as u64 little endian, and the bytes.

The file was made by this product at the commit that brought it.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from maskedlark.canonical import encode
from maskedlark.encoding import dates
from maskedlark.encoding.cells import Cells, said
from maskedlark.encoding.column_kinds import Binning, ColumnKind
from maskedlark.encoding.encoder import (
    CategoryColumn,
    DateColumn,
    Encoder,
    IdColumn,
    ImageColumn,
    NumberColumn,
    WrongCell,
)
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit

FILE: Final = Path(__file__).with_name("vectors.json")

_PEOPLE: Final = {
    "age": ["39", "50", "38", " 53", "28", "37", "49", "52.5"],
    "work": ["State-gov", "Private", "Private", " ? ", "Private", "N/A", "State-gov", "Self"],
    "gain": ["2174", "0", "0", "0", "0", "", "0", "99999"],
    "code": ["7", "1", "1", "2", "1", "3", "1", "2"],
    "income": ["<=50K", "<=50K", "<=50K", "<=50K", "<=50K", "<=50K", ">50K", ">50K"],
}
_CELLS: Final = [
    "0", "-0", "+1", "1.", ".5", "1e-3", "1E+3", " 7 ", "\t8\n", "0.1", "0.30000000000000004", "NULL",
]  # fmt: skip
_GAPS: Final = [
    "", "?", "-", "--", ".", "N/A", "#n/a", "na", "<NA>", "NaN", "NaT", "None", "NULL", " - ", "\t.\n",
    "-1", ".5",
]  # fmt: skip
_HARD: Final = [
    "9007199254740993", "1.7976931348623157e308", "4.9e-324", "2.2250738585072011e-308",
    "0.015789473684210523",
    "100000000000000000000000000000000000000000", "-1e22", "1e23", "0.1", "123456789.123456789",
]  # fmt: skip
_DATES: Final = [
    "03/04/2026", "3-4-2026 4:50", "2026-04-03", "3 Apr 2026", "03.04.2026", "13/04/2026", "04/13/2026", "",
]  # fmt: skip


def pictures(height: int, width: int) -> list[str]:
    """Images whose gradients have every direction and length, and blank ones, in hexadecimal."""
    y, x = np.mgrid[:height, :width]
    drawn = [
        np.zeros((height, width)),
        np.full((height, width), 255),
        (y * 37 + x * 101 + y * x * 13) % 256,
        255 * ((x // 2 + y // 3) % 2),
        x + y,
        255 * (x > y),
        (y * y + 3 * x) % 251,
        np.where(x == width // 2, 255, 1),
    ]
    return [image.astype(np.uint8).tobytes().hex() for image in drawn]


def vectors() -> dict[str, Any]:
    """All cases."""
    pair = Encoder(
        columns=(
            ImageColumn(name="shown", height=12, width=8),
            NumberColumn(name="n", first=0, missing=0, edges=(1.0,)),
            ImageColumn(name="small", height=4, width=4),
        )
    )
    digit = Encoder(columns=(ImageColumn(name="i", height=28, width=28),))
    people = fit(_clean(_PEOPLE), FitSettings(label="income", kinds={"code": ColumnKind.CATEGORY}))
    spelt = {"n": _CELLS}
    hard = {"n": _HARD}
    many = {"w": [f"word {index:03}" for index in range(300)]}
    ids = {"user": [f"u{index % 400}" for index in range(500)], "age": ["1", "2"] * 250}
    shown = {"user": ["u0", "u399", "u254", "nobody", "?", "u253"], "age": ["1", "2", "1", "2", "1", "2"]}
    return {
        "cases": {
            "people": _case(people, _PEOPLE),
            "people of another file": _case(
                people,
                {
                    "income": [">50K", "<=50K"],
                    "code": ["1", "9"],
                    "age": ["17.25", "NaN"],
                    "work": ["Abroad", "PRIVATE"],
                    "gain": ["-5", "1e9"],
                },
            ),
            "spellings of numbers": _case(fit(_clean(spelt), FitSettings(bins=16)), spelt),
            "numbers that are hard to read": _case(
                fit(_clean(hard), FitSettings(binning=Binning.QUANTILE)), hard
            ),
            "cells that say nothing": _case(
                Encoder(
                    columns=(
                        NumberColumn(name="n", first=1, missing=0, edges=(-1.0, 0.0)),
                        CategoryColumn(name="w", first=1, missing=0, categories=("-1", "-", "none")),
                        IdColumn(name="i", words=("-1", ".")),
                    )
                ),
                {"n": _GAPS, "w": _GAPS, "i": _GAPS},
            ),
            "few bins": _case(
                fit({"n": [str(value) for value in range(100)]}, FitSettings(bins=5)),
                {"n": [str(value) for value in range(-2, 103, 3)]},
            ),
            "more words than bytes": _case(fit(_clean(many), FitSettings()), many),
            "ids with a row each": _case(fit(_clean(ids), FitSettings(words={"user": None})), shown),
            "ids of few words": _case(fit(_clean(ids), FitSettings(words={"user": 3})), shown),
            "ids that a training carries": _case(
                fit(
                    _clean(ids),
                    FitSettings(words={"user": None}, training=PlannedTraining(reports=3_000, epsilon=1.0)),
                ),
                shown,
            ),
            "ids that are hashed": _case(
                fit(_clean(shown), FitSettings(hashed={"user": 70_000})),
                {"user": ["u0", "é", "日本", "NA", "u0 ", ""], "age": ["1", "2", "1", "2", "1", "2"]},
            ),
            "dates with the day first": _case(
                _dated(dates.DateOrder.DAY_FIRST), {"seen": [one for one in _DATES if one != "04/13/2026"]}
            ),
            "dates with the month first": _case(
                _dated(dates.DateOrder.MONTH_FIRST), {"seen": [one for one in _DATES if one != "13/04/2026"]}
            ),
            "images": _case(digit, {"i": pictures(28, 28)}),
            "images beside a number": _case(
                pair, {"shown": pictures(12, 8), "n": ["0", "1"] * 4, "small": pictures(4, 4)}
            ),
            "classes that are numbers": _case(
                fit({"n": ["1", "2"], "y": ["10", "9.5"]}, FitSettings(label="y")),
                {"n": ["1", "2", "3"], "y": ["9.50", "10.0", "1e1"]},
            ),
            "characters beyond ASCII": _case(
                fit({"w": ["é", "e\u0301", "日本", "日本"]}, FitSettings()),
                {"w": ["é", "e\u0301", "日本", "İ"]},
            ),
        },
        "refused": {
            "a word among numbers": _refused(fit({"n": ["1"]}, FitSettings()), {"n": ["1", "0x10"]}),
            "dashes that are no gap among numbers": _refused(
                fit({"n": ["1"]}, FitSettings()), {"n": ["-", "---"]}
            ),
            "too large a number": _refused(fit({"n": ["1"]}, FitSettings()), {"n": ["1e309"]}),
            "the month first where the day is": _refused(_dated(dates.DateOrder.DAY_FIRST), {"seen": _DATES}),
            "the day first where the month is": _refused(
                _dated(dates.DateOrder.MONTH_FIRST), {"seen": _DATES}
            ),
            "an image of another size": _refused(digit, {"i": [pictures(28, 28)[2], pictures(28, 24)[2]]}),
            "an image that is missing": _refused(digit, {"i": [pictures(28, 28)[2].upper(), "?"]}),
            "an image that is no hexadecimal": _refused(digit, {"i": ["0x" + "00" * 783]}),
            "a class that is not there": _refused(
                fit({"n": ["1"], "y": ["a"]}, FitSettings(label="y")), {"n": ["1", "1"], "y": ["a", "b"]}
            ),
        },
    }


def _dated(order: dates.DateOrder) -> Encoder:
    """An encoder of dates whose days of 2026 each have a byte, from February on."""
    first = 20_485
    return Encoder(
        columns=(
            NumberColumn(
                name="seen@day", first=1, missing=0, edges=tuple(map(float, range(first, first + 254)))
            ),
            CategoryColumn(name="seen@weekday", first=1, missing=0, categories=("Wed", "Fri", "Mon")),
            NumberColumn(name="seen@hour", first=1, missing=0, edges=(4.0, 5.0)),
        ),
        dates=(DateColumn(name="seen", order=order),),
    )


def _clean(columns: dict[str, list[str]]) -> dict[str, list[str | None]]:
    return {name: [said(cell) for cell in cells] for name, cells in columns.items()}


def _cells(encoder: Encoder, columns: dict[str, list[str]]) -> dict[str, Cells]:
    """The cells of the columns, and the parts of dates that the encoder reads."""
    cells = _clean(columns)
    wanted = [column.name for column in encoder.columns]
    return {**cells, **dates.with_parts(cells, wanted, encoder.date_orders)}


def _case(encoder: Encoder, columns: dict[str, list[str]]) -> dict[str, Any]:
    cells = _cells(encoder, columns)
    return {
        "encoder": encode(encoder).decode(),
        "digest": encoder.digest.hex(),
        "cells": columns,
        "features": encoder.features(cells).tolist(),
        "labels": None if encoder.label is None else encoder.labels(cells).tolist(),
    }


def _refused(encoder: Encoder, columns: dict[str, list[str]]) -> dict[str, Any]:
    try:
        for name, order in encoder.date_orders.items():
            wrong_dates = dates.wrong_dates(columns[name], order)
            if rows := [row for row, cell in enumerate(columns[name]) if cell and cell in wrong_dates]:
                raise WrongCell(name, rows[0], "it is no date of this order")
        cells = _cells(encoder, columns)
        encoder.features(cells)
        encoder.labels(cells)
    except WrongCell as wrong:
        return {
            "encoder": encode(encoder).decode(),
            "cells": columns,
            "column": wrong.column,
            "row": wrong.row,
        }
    raise AssertionError("the encoder read all cells")


if __name__ == "__main__":
    FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
